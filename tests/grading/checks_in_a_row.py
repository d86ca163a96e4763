"""A program that checks answers one after the other, and prints the grades' text and HTML as JSON.

It is a file, since a starter is recognized by the line of its source.
"""

import json

from labkit.amp import ScalerConfig, ScalerState
from labkit.grading import EXERCISES, check


def starter(state: ScalerState, found_inf: bool, config: ScalerConfig) -> ScalerState:
    raise NotImplementedError("your code goes here")


def wrong(*arguments: object) -> None:
    """Answer any exercise with None."""


if __name__ == "__main__":
    right = EXERCISES["scaling.advance"].reference
    grades = {
        "starter": check("scaling.advance", starter),
        "first failure": check("scaling.advance", wrong),
        "right answer": check("scaling.advance", right),
        "second failure": check("scaling.advance", wrong),
        "right answer after two failures": check("scaling.advance", right),
        "first failure of another exercise": check("scaling.clip", wrong),
    }
    print(json.dumps({when: [str(grade), grade._repr_html_()] for when, grade in grades.items()}))
