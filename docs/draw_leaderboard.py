"""Write docs/leaderboard.md from the files in docs/leaderboard: ``make leaderboard``."""

from pathlib import Path

from draw_claims import markdown

from tpviz.course.contest import ranked, task

HERE = Path(__file__).parent
HEAD = """# Leaderboard

Tasks that anybody can enter, by a pull request with one file
([how](how-to/enter-the-leaderboard.md)). Every score is simulated or counted from sizes and
messages, never timed, so `tpviz leaderboard` gives the same number on any machine. Before an entry
has a score, real ranks train with it in float64: every gradient must equal one process, and every
rank's bytes the formula. "Baseline" marks our own entries, to compare others with. This page is
written from the entries by `make leaderboard`.
"""


def page(tasks: Path) -> str:
    """The page in Markdown, of the tasks in a folder."""
    return HEAD + "".join(part(path.parent) for path in sorted(tasks.glob("*/task.toml")))


def part(folder: Path) -> str:
    """A task and its entries, best first."""
    of = task(folder)
    rows = [["", "score", "entry", "what", "by", "date", "how"]]
    for place, (score, one) in enumerate(ranked(of, folder.parent), 1):
        link = f"[{one.name}](leaderboard/{of.name}/{one.name}.toml)"
        by = f"{one.author}, baseline" if one.baseline else one.author
        what = f"`{one.strategy.short}`"
        rows.append([f"{place}", of.show(score), link, what, by, f"{one.date}", one.how])
    return (
        f"\n## {of.title}\n\n{of.question.strip()}\n\n"
        f"Model: `{of.model}`. Cluster: `{of.cluster}`. Ranks compare `{of.small}`. "
        f"[The task](leaderboard/{of.name}/task.toml).\n\n{markdown(rows)}"
    )


def main() -> None:
    """All tasks."""
    (HERE / "leaderboard.md").write_text(page(HERE / "leaderboard"))


if __name__ == "__main__":
    main()
