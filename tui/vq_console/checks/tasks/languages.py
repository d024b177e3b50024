"""Number and date items in six languages: seeded generators with one answer that needs no translation."""

from __future__ import annotations

import datetime
import random

from vq_console.checks.tasks.model import Item, user

_MONTHS = {
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "en": "January February March April May June July August September October November December",
    "ru": "января февраля марта апреля мая июня июля августа сентября октября ноября декабря",
    "zh": "1月 2月 3月 4月 5月 6月 7月 8月 9月 10月 11月 12月",
}
_DATE = {
    "en": "What date is {n} days after {d} {m} {y}? Reply only with the date as YYYY-MM-DD.",
    "de": "Welches Datum ist {n} Tage nach dem {d}. {m} {y}? Antworte nur mit dem Datum als JJJJ-MM-TT.",
    "fr": "Quelle est la date {n} jours après le {d} {m} {y} ? Réponds seulement par la date au format AAAA-MM-JJ.",
    "es": "¿Qué fecha es {n} días después del {d} de {m} de {y}? Responde solo con la fecha como AAAA-MM-DD.",
    "ru": "Какая дата будет через {n} дней после {d} {m} {y} года? Ответь только датой в виде ГГГГ-ММ-ДД.",
    "zh": "{y}年{m}{d}日之后{n}天是哪一天？只用YYYY-MM-DD格式回答日期。",
}
_FORMAT = {
    "en": "Write the date {d} {m} {y} as YYYY-MM-DD. Reply only with the date.",
    "de": "Schreibe das Datum {d}. {m} {y} als JJJJ-MM-TT. Antworte nur mit dem Datum.",
    "fr": "Écris la date {d} {m} {y} au format AAAA-MM-JJ. Réponds seulement par la date.",
    "es": "Escribe la fecha {d} de {m} de {y} como AAAA-MM-DD. Responde solo con la fecha.",
    "ru": "Запиши дату {d} {m} {y} года в виде ГГГГ-ММ-ДД. Ответь только датой.",
    "zh": "把日期{y}年{m}{d}日写成YYYY-MM-DD格式。只回答日期。",
}
_SUM = {
    "en": "How much is {a} plus {b} minus {c}? Reply only with the number.",
    "de": "Wie viel ist {a} plus {b} minus {c}? Antworte nur mit der Zahl.",
    "fr": "Combien font {a} plus {b} moins {c} ? Réponds seulement par le nombre.",
    "es": "¿Cuánto es {a} más {b} menos {c}? Responde solo con el número.",
    "ru": "Сколько будет {a} плюс {b} минус {c}? Ответь только числом.",
    "zh": "{a}加{b}减{c}等于多少？只回答数字。",
}

LANGUAGES = tuple(_SUM)


def language_item(random_: random.Random, level: int, number: int) -> Item:
    """Dates and sums in turn; the level makes numbers longer and date steps cross months."""
    language = LANGUAGES[number % len(LANGUAGES)]
    if number // len(LANGUAGES) % 2 == 0:
        day = datetime.date(random_.randint(2001, 2040), random_.randint(1, 12), random_.randint(1, 28))
        months = _MONTHS[language].split()
        fields: dict[str, str | int] = {"d": day.day, "m": months[day.month - 1], "y": day.year}
        if level == 1:
            text, want = _FORMAT[language].format(**fields), day
        else:
            step = random_.randint(2, (3, 6, 20, 60)[min(level, 5) - 2])
            if level == 2:
                day = day.replace(day=min(day.day, 24))
                fields["d"] = day.day
            text, want = _DATE[language].format(n=step, **fields), day + datetime.timedelta(days=step)
        check: dict[str, object] = {"type": "regex", "pattern": rf"(?<!\d){want.isoformat()}(?!\d)"}
    else:
        top = 10 ** (1 + (level + 1) // 2)
        a, b = random_.randint(2, top), random_.randint(2, top)
        c = random_.randint(1, a + b - 1) if level > 1 else random_.randint(0, min(a + b, 9))
        text, check = _SUM[language].format(a=a, b=b, c=c), {"type": "number", "value": a + b - c}
    return Item(
        id=f"lang-{language}-{level}-{number}",
        task="languages",
        messages=(user(text),),
        check=check,
        max_tokens=40,
        facts={"level": level, "language": language},
    )
