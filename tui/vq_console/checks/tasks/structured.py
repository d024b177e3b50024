"""JSON extraction against a schema, tool calls, and verifiable instructions: seeded generators.

Guided decoding is never asked for: whether the JSON is valid is part of what is measured.
"""

from __future__ import annotations

import json
import random
from typing import Any

from vq_console.checks.tasks.model import Item, user
from vq_console.checks.tasks.rules import draw_rules, say_rule

_FIRST = ("Anna", "Bilal", "Carla", "Deniz", "Emil", "Fatima", "Goran", "Hana", "Ivan", "Jana")
_LAST = ("Berg", "Costa", "Dubois", "Egger", "Fischer", "Garcia", "Haddad", "Ito", "Jensen", "Kovac")
_GOODS = ("desk lamp", "office chair", "notebook", "water filter", "keyboard", "tea kettle", "backpack", "headset")
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October")


def _order(random_: random.Random, level: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """A message about an order, the record in it, and the schema of that record."""
    name = f"{random_.choice(_FIRST)} {random_.choice(_LAST)}"
    quantity, good = random_.randint(2, 12), random_.choice(_GOODS)
    record: dict[str, Any] = {"customer": name, "item": good, "quantity": quantity}
    types: dict[str, Any] = {
        "customer": {"type": "string"},
        "item": {"type": "string"},
        "quantity": {"type": "integer"},
    }
    text = [f"Hello, this is {name}. I would like to order {quantity} pieces of the {good}."]
    if level >= 2:
        record["city"] = random_.choice(("Lyon", "Porto", "Gdansk", "Malmo", "Bari"))
        types["city"] = {"type": "string"}
        text.append(f"Please send everything to our branch in {record['city']}, not to the old address.")
    if level >= 3:
        day, month, year = random_.randint(1, 28), random_.randint(1, 10), random_.choice((2027, 2028))
        record["deliver_by"] = f"{year}-{month:02d}-{day:02d}"
        types["deliver_by"] = {"type": "string", "description": "YYYY-MM-DD"}
        text.append(f"We need it by {_MONTHS[month - 1]} {day}, {year} at the latest.")
    if level >= 4:
        price = random_.randint(9, 90)
        record["total_eur"] = price * quantity
        types["total_eur"] = {"type": "number"}
        text.append(f"The catalogue says {price} euros for each piece, and you take nothing for shipping.")
    if level >= 5:
        record["express"] = random_.random() < 0.5
        types["express"] = {"type": "boolean"}
        text.append("It must go by express." if record["express"] else "Express is not needed, the slow post will do.")
    tail = text[1:]
    random_.shuffle(tail)
    text = [text[0], *tail]
    schema = {"type": "object", "properties": types, "required": list(types), "additionalProperties": False}
    return " ".join(text), record, schema


def json_extraction(random_: random.Random, level: int, number: int) -> Item:
    """Level 1 to 5 is three to seven fields; from level 3 dates, from level 4 a product."""
    text, record, schema = _order(random_, level)
    ask = (
        f"Extract the order from this message as one JSON object with this schema:\n{json.dumps(schema)}\n\n"
        f"Message: {text}\n\nReply with the JSON object only."
    )
    return Item(
        id=f"json-{level}-{number}",
        task="JSON extraction",
        messages=(user(ask),),
        check={"type": "json_equals", "schema": schema, "value": record},
        max_tokens=96 + 24 * level,
        expects_json=True,
        facts={"level": level},
    )


def _weather(r: random.Random) -> tuple[str, dict[str, Any]]:
    city, days = r.choice(("Oslo", "Lima", "Accra", "Kyoto")), r.randint(2, 7)
    return f"What will the weather be in {city} over the next {days} days?", {"city": city, "days": days}


def _alarm(r: random.Random) -> tuple[str, dict[str, Any]]:
    hour, minute = r.randint(5, 11), r.choice((0, 15, 30, 45))
    return f"Wake me at {hour}:{minute:02d} in the morning.", {"hour": hour, "minute": minute}


def _convert(r: random.Random) -> tuple[str, dict[str, Any]]:
    amount = r.randint(20, 900)
    source, target = r.sample(("EUR", "USD", "JPY", "GBP"), 2)
    return f"How much is {amount} {source} in {target}?", {"amount": amount, "source": source, "target": target}


def _message(r: random.Random) -> tuple[str, dict[str, Any]]:
    name, text = r.choice(_FIRST), r.choice(("I am late", "see you soon", "call me back", "dinner is ready"))
    return f"Send {name} the message '{text}'.", {"to": name, "text": text}


def _route(r: random.Random) -> tuple[str, dict[str, Any]]:
    a, b = r.sample(("the station", "the museum", "the harbour", "the airport"), 2)
    mode = r.choice(("walk", "bike", "car"))
    how = {"walk": "on foot", "bike": "by bike", "car": "by car"}[mode]
    return f"How do I get from {a} to {b} {how}?", {"start": a, "end": b, "mode": mode}


_TOOLS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "get_forecast": (_weather, "Weather forecast.", {"city": {"type": "string"}, "days": {"type": "integer"}}),
    "set_alarm": (_alarm, "Set an alarm, 24-hour clock.", {"hour": {"type": "integer"}, "minute": {"type": "integer"}}),
    "convert_currency": (
        _convert,
        "Convert money.",
        {"amount": {"type": "number"}, "source": {"type": "string"}, "target": {"type": "string"}},
    ),
    "send_message": (_message, "Send a text message.", {"to": {"type": "string"}, "text": {"type": "string"}}),
    "find_route": (
        _route,
        "Find a route between two places.",
        {
            "start": {"type": "string"},
            "end": {"type": "string"},
            "mode": {"type": "string", "enum": ["walk", "bike", "car"]},
        },
    ),
}


def tool_call(random_: random.Random, level: int, number: int) -> Item:
    """Level 1 to 4 offers two to five tools; the right one must be called with the right arguments, as JSON."""
    wanted = random_.choice(list(_TOOLS))
    others = random_.sample([name for name in _TOOLS if name != wanted], min(level, len(_TOOLS) - 1))
    offered = [wanted, *others]
    random_.shuffle(offered)
    make, _, _ = _TOOLS[wanted]
    question, arguments = make(random_)
    tools = [
        {"name": name, "description": _TOOLS[name][1], "parameters": {"type": "object", "properties": _TOOLS[name][2]}}
        for name in offered
    ]
    ask = (
        "You can call one of these tools:\n"
        + "\n".join(json.dumps(tool) for tool in tools)
        + f"\n\nRequest: {question}\n\n"
        + 'Reply with one JSON object only, like {"name": "tool name", "arguments": {"key": "value"}}.'
    )
    return Item(
        id=f"tool-{level}-{number}",
        task="tool calls",
        messages=(user(ask),),
        check={"type": "tool_call", "name": wanted, "arguments": arguments},
        max_tokens=96,
        expects_json=True,
        facts={"level": level},
    )


_TOPICS = (
    "a walk in the rain", "how bread is made", "why the sky is blue", "a letter to a neighbour", "a first day at work",
    "a lost key", "how to plant a tree", "a train journey", "an old bicycle", "a busy market", "a quiet evening",
)  # fmt: skip


def instructions(random_: random.Random, level: int, number: int) -> Item:
    """Level 1 to 5 is that many constraints at once, all of which must hold."""
    rules = draw_rules(random_, level)
    ask = f"Write a short text about {random_.choice(_TOPICS)}. " + " ".join(say_rule(rule) for rule in rules)
    return Item(
        id=f"rules-{level}-{number}",
        task="instructions",
        messages=(user(ask),),
        check={"type": "constraints", "rules": rules},
        max_tokens=160,
        facts={"level": level, "rules": [rule["rule"] for rule in rules]},
    )
