"""The names of units and the ways to ask for a conversion."""

from __future__ import annotations

# A unit's name in answers, and the names that it is asked by.

NAMES = {
    "mm": ("mm", "mm", "millimeters", "millimetres"),
    "cm": ("cm", "cm", "centimeters", "centimetres"),
    "m": ("m", "m", "meters", "metres"),
    "km": ("km", "km", "kilometers", "kilometres"),
    "mg": ("mg", "mg", "milligrams"),
    "g": ("g", "g", "grams"),
    "kg": ("kg", "kg", "kilograms", "kilos"),
    "t": ("t", "tonnes", "metric tons"),
    "mL": ("mL", "ml", "milliliters", "millilitres"),
    "L": ("L", "L", "liters", "litres"),
    "s": ("s", "seconds", "seconds", "sec"),
    "min": ("min", "minutes", "minutes", "min"),
    "h": ("h", "hours", "hours", "h"),
    "days": ("days",),
    "weeks": ("weeks",),
    "months": ("months",),
    "years": ("years",),
    "bits": ("bits",),
    "bytes": ("bytes", "bytes", "bytes", "B"),
    "kB": ("kB", "kilobytes"),
    "MB": ("MB", "megabytes"),
    "GB": ("GB", "gigabytes"),
    "KiB": ("KiB", "KiB", "kibibytes"),
    "MiB": ("MiB", "MiB", "mebibytes"),
    "GiB": ("GiB", "GiB", "gibibytes"),
    "inches": ("inches", "inches", "inches", "in"),
    "feet": ("feet", "feet", "feet", "ft"),
    "yards": ("yards", "yards", "yd"),
    "miles": ("miles", "miles", "mi"),
    "pounds": ("pounds", "pounds", "lb", "lbs"),
    "ounces": ("ounces", "ounces", "oz"),
    "gallons": ("gallons",),
    "°C": ("°C", "°C", "degrees Celsius", "Celsius", "C", "degrees C"),
    "°F": ("°F", "°F", "degrees Fahrenheit", "Fahrenheit", "F", "degrees F"),
}
FORMS = (
    "Convert {v} {u} to {w}.",
    "Convert {v} {u} into {w}.",
    "Convert {v} {u} in {w}.",
    "Please convert {v} {u} to {w}.",
    "Can you convert {v} {u} to {w}?",
    "Change {v} {u} to {w}.",
    "Express {v} {u} in {w}.",
    "How many {w} are {v} {u}?",
    "How many {w} are in {v} {u}?",
    "How many {w} are there in {v} {u}?",
    "How many {w} is {v} {u}?",
    "How many {w} does {v} {u} have?",
    "How many {w} make {v} {u}?",
    "How much is {v} {u} in {w}?",
    "What is {v} {u} in {w}?",
    "What's {v} {u} in {w}?",
    "What is {v} {u} expressed in {w}?",
    "{v} {u} is how many {w}?",
    "{v} {u} equals how many {w}?",
    "{v} {u} in {w}?",
    "{v} {u} in {w}",
    "{v} {u} to {w}",
    "{v} {u} = ? {w}",
    "{v} {u} -> {w}",
    "Tell me how many {w} {v} {u} is.",
)
IRREGULAR = {"inches": "inch", "feet": "foot", "Celsius": "Celsius", "degrees Celsius": "degree Celsius"}


def singular(unit: str) -> str:
    """The name for one of a unit: "hour" for "hours", "km" for "km"."""
    return IRREGULAR.get(unit, unit.removesuffix("s") if len(unit) > 3 else unit)
