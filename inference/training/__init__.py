"""The training loop: pairs, data and settings in, trained pairs and their history out."""

from typing import TYPE_CHECKING

from ...data import lazy_names

if TYPE_CHECKING:
    from .doubts import log_density_alone, nll_alone
    from .fitting import fit, fit_repeats, pick_device
    from .foreign_pairs import as_fit
    from .numbers import NUMBERS, Numbers, as_numbers, epochs_of_numbers
    from .ordinary import (
        EVALUATIONS,
        RATES,
        Trained,
        look,
        retrain,
        row_changes,
        row_losses,
        score_untrained,
        tempered,
        trained,
        trainer_of,
    )
    from .replicate import Replicate
    from .result import Fit, Repeats
    from .settings import MOST_STEPS, Settings
    from .step import CompileFallback, TrainingStep
    from .teacher import FEW, Teacher, may_teach, teacher_of
    from .terminal import FitProgress, StopSignal
    from .trainer import Interrupted, NonFiniteLoss, Pace, Trainer

__getattr__, __dir__ = lazy_names(__name__)
