"""The figures of docs/figures.toml, as the pages show them. `python docs/_ext/figures.py` draws the chart of README."""

from pathlib import Path

from tfpipe.engine.config import toml_json

DOCS = Path(__file__).resolve().parents[1]
FIGURES: dict[str, dict[str, int]] = toml_json.read(str(DOCS / "figures.toml"))
BARS = {  # by table and name
    "tfpipe, --seekable shards": ("crops", "tfpipe_seekable"),
    "tfpipe": ("crops", "tfpipe"),
    "tf.data by hand": ("crops", "by_hand"),
    "DALI on the CPU *": ("earlier", "dali"),
    "FFCV, files of 500 px *": ("earlier", "ffcv"),
}
THEMES = {"light": ("#1f2328", "#2f6fd0", "#aab4c0"), "dark": ("#e6edf3", "#5b9bf5", "#57616d")}  # text, ours, others


def make_substitutions() -> dict[str, str]:
    """Returns what a page writes as `{{ crops_tfpipe }}`, and ratios such as `{{ crops_tfpipe_gain }}` to `by_hand`."""
    rows = [
        (f"{table}_{name}", figure, row["by_hand"]) for table, row in FIGURES.items() for name, figure in row.items()
    ]
    return {key: f"{figure:,}" for key, figure, _ in rows} | {f"{key}_gain": f"{a / b:.1f}" for key, a, b in rows}


def draw_chart(theme: str) -> str:
    """Draws the bars as SVG, for a light or a dark page."""
    text, ours, others = THEMES[theme]
    bars = ""
    for row, (title, (table, name)) in enumerate(BARS.items()):
        y, width = 16 + 34 * row, round(240 * FIGURES[table][name] / max(FIGURES["crops"].values()))
        bars += f'  <text x="192" y="{y + 17}" text-anchor="end">{title}</text>\n'
        color = ours if title.startswith("tfpipe") else others
        bars += f'  <rect x="202" y="{y}" width="{width}" height="24" rx="3" fill="{color}"/>\n'
        bars += f'  <text x="{210 + width}" y="{y + 17}" font-weight="600">{FIGURES[table][name]:,}</text>\n'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 500 184" fill="{text}" font-size="14" '
    head += 'font-family="system-ui, sans-serif">\n  <title>Images for each second of one core</title>\n'
    return f"{head}{bars}</svg>\n"


if __name__ == "__main__":
    for theme in THEMES:
        (DOCS / "_static" / f"speed-{theme}.svg").write_text(draw_chart(theme), encoding="utf-8")
