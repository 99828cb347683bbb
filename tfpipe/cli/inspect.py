import click


@click.command()
def inspect():
    pass
