"""The built-in prompts that start sampled texts and greedy answers: short, varied, in several languages, by seed.

Own wording; short on purpose, since a prompt is read on every scoring.
"""

from __future__ import annotations

import itertools
import random

from vq_console.checks.tasks.model import Item, user

_TOPICS = ("rain", "bread", "the moon", "old maps", "bees", "a lost key", "tea", "glass", "winter", "trains", "salt",
           "shadows", "honey", "clocks", "rivers", "paper", "a garden", "sleep", "music", "bridges")  # fmt: skip
_FORMS = (
    "Write the opening of a story about {t}.",
    "Explain {t} to a child.",
    "Give me five facts about {t}.",
    "Write a short poem about {t}.",
    "What do people often get wrong about {t}?",
    "Write a dialogue about {t}.",
)
_CODE = ("reverses a string", "finds the largest prime below n", "parses a CSV line", "merges two sorted lists",
         "counts words in a file", "checks for a palindrome", "computes a mean", "flattens a list")  # fmt: skip
_LANGUAGES = ("Python", "JavaScript", "SQL", "Rust")
_FOREIGN = (
    "Erkläre kurz, wie ein Regenbogen entsteht.",
    "Schreibe eine kurze Geschichte über einen Hund.",
    "Raconte une histoire courte sur la mer.",
    "Explique comment on fait du pain.",
    "Escribe un cuento breve sobre la luna.",
    "¿Por qué el cielo es azul?",
    "Расскажи коротко о зиме.",
    "Объясни, почему летают самолёты.",
    "写一个关于春天的小故事。",
    "为什么天空是蓝色的？",
    "Escreva uma carta curta a um amigo.",
    "Racconta una breve storia su un treno.",
)
_MATHS = ("What is 17 times 24? Show the steps.", "Solve 3x + 5 = 20.", "Convert 5 miles to kilometres.",
          "How many minutes are in a week?", "A shirt costs 40, minus 15 %. Price?",
          "Which is larger, 5/8 or 0.6?")  # fmt: skip


def built_in_prompts(count: int, seed: int) -> list[Item]:
    """`count` different prompts in a seeded order that mixes the kinds; raises ValueError above what there is."""
    stories = [form.format(t=topic) for form, topic in itertools.product(_FORMS, _TOPICS)]
    code = [f"Write a {language} function that {what}." for language, what in itertools.product(_LANGUAGES, _CODE)]
    pools = [stories, code, list(_FOREIGN), list(_MATHS)]
    shares = (9, 3, 3, 1)
    random_ = random.Random(f"prompts:{seed}")
    for pool in pools:
        random_.shuffle(pool)
    total = sum(len(pool) for pool in pools)
    if count > total:
        raise ValueError(f"only {total} built-in prompts exist")
    chosen: list[str] = []
    cycle = [pool for pool, share in zip(pools, shares, strict=True) for _ in range(share)]
    while len(chosen) < count:
        for pool in cycle:
            if pool and len(chosen) < count:
                chosen.append(pool.pop())
    random_.shuffle(chosen)
    return [
        Item(id=f"built-in-{number}", task="built-in", messages=(user(text),), check={}, max_tokens=128)
        for number, text in enumerate(chosen)
    ]
