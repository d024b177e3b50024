"""Word problems of two to six steps with integer answers, and table look-ups: seeded generators."""

from __future__ import annotations

import random

from vq_console.checks.tasks.model import Item, user

_NAMES = ("Mara", "Tom", "Aisha", "Luis", "Ingrid", "Kofi", "Yuki", "Priya", "Noah", "Elena", "Omar", "Sofia")
_THINGS = ("apples", "marbles", "stickers", "books", "pencils", "shells", "stamps", "candles", "buttons", "tickets")
_PLACES = ("shop", "market", "school", "library", "club", "farm")

ASK = "Think it through step by step, briefly. Then write the result on the last line as 'Answer: N'."


def _step(random_: random.Random, who: str, things: str, value: int, hard: bool) -> tuple[str, int]:
    """One sentence of the story and the value after it."""
    kinds = ["gain", "lose", "gain", "friend"]
    if value <= 60:
        kinds.append("times")
    if value % 2 == 0 and value >= 4:
        kinds.append("half")
    if hard:
        kinds += ["bags", "share"]
    kind = random_.choice(kinds)
    if kind == "lose" and value < 4:
        kind = "gain"
    if kind == "gain":
        n = random_.randint(3, 40 if hard else 15)
        return f"{who} then buys {n} more {things}.", value + n
    if kind == "lose":
        n = random_.randint(1, min(value - 1, 30))
        return f"{who} gives {n} {things} away.", value - n
    if kind == "friend":
        n = random_.randint(2, 20)
        other = random_.choice([name for name in _NAMES if name != who])
        return f"{other} brings {n} {things} and adds them to the pile.", value + n
    if kind == "times":
        n = random_.randint(2, 3)
        return f"The next day the number of {things} is {n} times as large.", value * n
    if kind == "half":
        return f"{who} sells half of the {things} at the {random_.choice(_PLACES)}.", value // 2
    if kind == "bags":
        bags, each = random_.randint(2, 9), random_.randint(3, 12)
        return f"{who} finds {bags} bags with {each} {things} in each.", value + bags * each
    people = random_.randint(2, 6)
    taken = random_.randint(1, max(1, value // (people * 2)))
    if taken * people >= value:
        return f"{who} then buys {people} more {things}.", value + people
    return f"Each of {people} friends takes {taken} {things}.", value - taken * people


def word_problem(random_: random.Random, level: int, number: int) -> Item:
    """Level 1 to 5 is two to six steps; from level 4 on with larger numbers and products."""
    who, things = random_.choice(_NAMES), random_.choice(_THINGS)
    value = random_.randint(5, 30 if level < 4 else 90)
    lines = [f"{who} has {value} {things}."]
    for _ in range(level + 1):
        line, value = _step(random_, who, things, value, level >= 4)
        lines.append(line)
    lines.append(f"How many {things} are there now?")
    return Item(
        id=f"words-{level}-{number}",
        task="word problems",
        messages=(user(" ".join(lines) + " " + ASK),),
        check={"type": "number", "value": value},
        max_tokens=80 + 40 * level,
        facts={"level": level},
    )


_CITIES = ("Oslo", "Lima", "Accra", "Kyoto", "Turin", "Perth", "Quito", "Riga", "Tunis", "Bergen", "Cusco", "Graz")
_COLUMNS = ("bikes", "trams", "parks", "schools", "bridges", "libraries", "cafes", "museums")


def table_lookup(random_: random.Random, level: int, number: int) -> Item:
    """Level 1 and 2 read one cell of a growing table; 3 adds two cells, 4 finds the largest row, 5 sums a column."""
    rows = random_.sample(_CITIES, 3 + level)
    columns = random_.sample(_COLUMNS, min(2 + level, len(_COLUMNS)))
    cells = {row: {column: random_.randint(10, 990) for column in columns} for row in rows}
    lines = ["| city | " + " | ".join(columns) + " |", "|" + " --- |" * (len(columns) + 1)]
    lines += [f"| {row} | " + " | ".join(str(cells[row][c]) for c in columns) + " |" for row in rows]
    row, column = random_.choice(rows), random_.choice(columns)
    end = "Reply with only the answer."
    check: dict[str, object]
    if level <= 2:
        question, check = f"How many {column} does {row} have?", {"type": "number", "value": cells[row][column]}
    elif level == 3:
        other = random_.choice([name for name in rows if name != row])
        question = f"How many {column} do {row} and {other} have together?"
        check = {"type": "number", "value": cells[row][column] + cells[other][column]}
    elif level == 4:
        best = max(rows, key=lambda name: cells[name][column])
        if [cells[name][column] for name in rows].count(cells[best][column]) > 1:
            cells[best][column] += 1000
            lines = lines[:2] + [f"| {r} | " + " | ".join(str(cells[r][c]) for c in columns) + " |" for r in rows]
        question, check = f"Which city has the most {column}?", {"type": "contains", "value": best}
    else:
        question = f"What is the sum of all values in the column '{column}'?"
        check = {"type": "number", "value": sum(cells[name][column] for name in rows)}
    return Item(
        id=f"table-{level}-{number}",
        task="table look-up",
        messages=(user("\n".join(lines) + f"\n\n{question} {end}"),),
        check=check,
        max_tokens=48 if level < 5 else 96,
        facts={"level": level},
    )
