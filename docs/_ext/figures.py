"""The figures of docs/figures.toml, as the pages show them. `python docs/_ext/figures.py` draws the chart of README."""

from __future__ import annotations

from pathlib import Path

from tfpipe.engine.config.toml_json import read

DOCS = Path(__file__).resolve().parents[1]

BARS = [  # table, name, title
    ("crops", "tfpipe_seekable", "tfpipe, --seekable shards"),
    ("crops", "tfpipe", "tfpipe"),
    ("crops", "by_hand", "tf.data by hand"),
    ("earlier", "dali", "DALI on the CPU *"),
    ("earlier", "ffcv", "FFCV, files of 500 px *"),
]
_COLORS = {"light": ("#1f2328", "#2f6fd0", "#aab4c0"), "dark": ("#e6edf3", "#5b9bf5", "#57616d")}  # text, ours, others


def read_figures() -> dict[str, dict[str, int]]:
    """Reads docs/figures.toml."""
    return read(str(DOCS / "figures.toml"))


def make_substitutions() -> dict[str, str]:
    """Returns what a page writes as `{{ crops_tfpipe }}`, and ratios such as `{{ crops_tfpipe_gain }}` to `by_hand`."""
    texts = {}
    for table, figures in read_figures().items():
        for name, figure in figures.items():
            texts[f"{table}_{name}"] = f"{figure:,}"
            if "by_hand" in figures:
                texts[f"{table}_{name}_gain"] = f"{figure / figures['by_hand']:.1f}"
    return texts


def draw_chart(theme: str) -> str:
    """Draws the bars as SVG, for a light or a dark page."""
    text, ours, others = _COLORS[theme]
    figures = read_figures()
    largest = max(figures[table][name] for table, name, _ in BARS)
    rows = []
    for row, (table, name, title) in enumerate(BARS):
        figure, y = figures[table][name], 16 + 34 * row
        width, color = round(240 * figure / largest), ours if title.startswith("tfpipe") else others
        rows.append(f'<text x="192" y="{y + 17}" text-anchor="end">{title}</text>')
        rows.append(f'<rect x="202" y="{y}" width="{width}" height="24" rx="3" fill="{color}"/>')
        rows.append(f'<text x="{210 + width}" y="{y + 17}" font-weight="600">{figure:,}</text>')
    lines = "\n  ".join(rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 500 184" fill="{text}" font-size="14" '
        f"font-family=\"system-ui, -apple-system, 'Segoe UI', sans-serif\">\n"
        f"  <title>Images for each second of one core</title>\n  {lines}\n</svg>\n"
    )


if __name__ == "__main__":
    for name in _COLORS:
        (DOCS / "_static" / f"speed-{name}.svg").write_text(draw_chart(name), encoding="utf-8")
