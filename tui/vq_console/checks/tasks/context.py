"""Needle in a long context and recall over three turns: seeded generators.

A needle's context is measured in tokens of the model under test: the caller says how many characters a token has.
"""

from __future__ import annotations

import random

from vq_console.checks.tasks.model import Item, user

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)

_SUBJECTS = ("The ferry", "A gardener", "The old clock", "Our neighbour", "The baker", "A small dog", "The river",
             "The night train", "A painter", "The mayor", "The school choir", "A fisherman")  # fmt: skip
_VERBS = ("waited near", "walked past", "looked at", "forgot about", "repaired", "visited", "described", "photographed")
_OBJECTS = ("the stone bridge", "a red boat", "the empty square", "the apple trees", "a broken lamp", "the north wall",
            "the small bakery", "the winter market", "an unused tunnel", "the lighthouse")  # fmt: skip
_TAILS = ("before sunrise", "on a foggy day", "without saying a word", "for the third time", "during the holidays",
          "while it rained", "as the bells rang", "long after dark")  # fmt: skip
_CITIES = ("Arvik", "Belmora", "Castrel", "Dunhollow", "Esterby", "Farnwick", "Gildara", "Hollen", "Istrava", "Jorvale")


def filler(random_: random.Random, characters: int) -> list[str]:
    """Plain sentences, about `characters` long together."""
    sentences: list[str] = []
    length = 0
    while length < characters:
        parts = (random_.choice(_SUBJECTS), random_.choice(_VERBS), random_.choice(_OBJECTS), random_.choice(_TAILS))
        sentence = " ".join(parts) + "."
        sentences.append(sentence)
        length += len(sentence) + 1
    return sentences


def needle(
    random_: random.Random, number: int, *, tokens: int, depth: float, characters_per_token: float, hard: bool = False
) -> Item:
    """A number hidden at `depth` (0 start, 1 end) of a context of about `tokens` tokens; `hard` adds three decoys."""
    sentences = filler(random_, int((tokens - 80) * characters_per_token))
    city, *decoys = random_.sample(_CITIES, 4)
    code = random_.randint(10_000, 99_999)
    planted = [(depth, f"The secret number of the city of {city} is {code}.")]
    if hard:
        planted += [
            (random_.random(), f"The secret number of the city of {decoy} is {random_.randint(10_000, 99_999)}.")
            for decoy in decoys
        ]
    base = len(sentences)
    for place, sentence in sorted(planted, reverse=True):
        sentences.insert(round(place * base), sentence)
    ask = (
        "Read this text.\n\n"
        + " ".join(sentences)
        + f"\n\nWhat is the secret number of the city of {city}? Reply only with the number."
    )
    return Item(
        id=f"needle-{tokens}-{depth:g}-{number}",
        task=f"needle {tokens}",
        messages=(user(ask),),
        check={"type": "contains", "value": str(code)},
        max_tokens=32,
        facts={"tokens": tokens, "depth": depth},
    )


def needles(seed: int, tokens: int, *, characters_per_token: float, repeats: int = 2, hard: bool = False) -> list[Item]:
    """Five depths times `repeats` at one context length."""
    return [
        needle(
            random.Random(f"needle:{seed}:{tokens}:{depth}:{repeat}"),
            repeat,
            tokens=tokens,
            depth=depth,
            characters_per_token=characters_per_token,
            hard=hard,
        )
        for depth in DEPTHS
        for repeat in range(repeats)
    ]


_FACTS = (
    ("the locker code of {who} is {n}", "What is the locker code of {who}?", (1000, 9999)),
    ("the bus of {who} leaves from platform {n}", "Which platform does the bus of {who} leave from?", (2, 60)),
    ("the room of {who} has the number {n}", "What is the number of the room of {who}?", (100, 999)),
    ("the parcel of {who} has the number {n}", "What is the number of the parcel of {who}?", (10_000, 99_999)),
)
_FIRST = ("Mara", "Tom", "Aisha", "Luis", "Ingrid", "Kofi", "Yuki", "Priya", "Noah", "Elena", "Omar", "Sofia")
_LAST = ("Berg", "Costa", "Dubois", "Egger", "Haddad", "Ito", "Jensen", "Kovac", "Lindt", "Moreau", "Novak", "Orsi")
_CHATTER = (
    "Name one fruit that is yellow.",
    "Say good morning in French.",
    "What colour do you get from blue and yellow?",
    "Name a month with 30 days.",
    "Which animal says 'meow'?",
)


def recall(random_: random.Random, level: int, number: int) -> Item:
    """A fact in turn one, something else in turn two, the fact asked in turn three; the level adds more facts."""
    facts = random_.sample(_FACTS, min(level, len(_FACTS)))
    values = [random_.randint(*limits) for _, _, limits in facts]
    who = f"{_FIRST[number % len(_FIRST)]} {_LAST[(number // len(_FIRST) + 5 * number) % len(_LAST)]}"
    told = " and ".join(text.format(n=n, who=who) for (text, _, _), n in zip(facts, values, strict=True))
    asked = random_.randrange(len(facts))
    return Item(
        id=f"recall-{level}-{number}",
        task="three-turn recall",
        messages=(user(f"Please remember that {told}. Reply with 'OK'."),),
        follow_ups=(
            random_.choice(_CHATTER),
            facts[asked][1].format(who=who) + " Reply only with the number.",
        ),
        check={"type": "regex", "pattern": rf"(?<!\d){values[asked]}(?!\d)"},
        max_tokens=40,
        facts={"level": level},
    )
