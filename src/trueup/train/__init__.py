"""From a recipe to a run, from a grid of recipes to a table."""

from trueup.train.judge import StudyTable, judge
from trueup.train.loop import MODES, fit
from trueup.train.recipe import RECIPES, Recipe, named, recipe_for
from trueup.train.run import Run, load_run, train
from trueup.train.study import STUDIES, Study, StudyRuns, folder_name, run_study, study_named

__all__ = [
    # one training
    "RECIPES",
    "Recipe",
    "named",
    "recipe_for",
    "MODES",
    "fit",
    "train",
    "Run",
    "load_run",
    "folder_name",
    # many
    "STUDIES",
    "Study",
    "StudyRuns",
    "study_named",
    "run_study",
    # judged
    "StudyTable",
    "judge",
]
