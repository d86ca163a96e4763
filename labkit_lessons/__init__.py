"""The lessons of the course, a package each: texts, exercises, predictions, hints.

A lesson's notebook imports from the lesson's package, and never deeper: `from
labkit_lessons.lesson_10_clinic import look`. Lessons in the folders that the environment variable
LABKIT_COURSE names belong to this package, too.
"""

from labkit.course import added_parents

__path__.extend(parent for parent in added_parents() if parent not in __path__)

# Former name -> the lesson's name. Notebooks import these from labkit until version 0.4, with a
# warning.
MOVED: dict[str, str] = {
    "labkit.clinic.CONSULTATIONS": "labkit_lessons.lesson_10_clinic.CONSULTATIONS",
    "labkit.clinic.Consultation": "labkit_lessons.lesson_10_clinic.Consultation",
    "labkit.clinic.Treatment": "labkit_lessons.lesson_10_clinic.Treatment",
    "labkit.clinic.look": "labkit_lessons.lesson_10_clinic.look",
    "labkit.clinic.treat": "labkit_lessons.lesson_10_clinic.treat",
    "labkit.grading.CONSULTATIONS": "labkit_lessons.lesson_10_clinic.CONSULTATIONS",
    "labkit.grading.Consultation": "labkit_lessons.lesson_10_clinic.Consultation",
    "labkit.grading.FAILING": "labkit_lessons.lesson_12_project.FAILING",
    "labkit.grading.PROJECT_TASKS": "labkit_lessons.lesson_12_project.PROJECT_TASKS",
    "labkit.grading.SIX": "labkit_lessons.lesson_03b_rounding_or_fault.SIX",
    "labkit.grading.Treatment": "labkit_lessons.lesson_10_clinic.Treatment",
    "labkit.grading.enter": "labkit_lessons.lesson_12_project.enter",
    "labkit.grading.look": "labkit_lessons.lesson_10_clinic.look",
    "labkit.grading.show": "labkit_lessons.lesson_12_project.show",
    "labkit.grading.six_operands": "labkit_lessons.lesson_03b_rounding_or_fault.six_operands",
    "labkit.grading.treat": "labkit_lessons.lesson_10_clinic.treat",
}
