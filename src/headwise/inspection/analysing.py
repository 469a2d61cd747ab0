"""`headwise analyse`: what the heads of finished runs do on one part of their data."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console

from headwise.analysis.behaviour.ablating import Detail, ablate
from headwise.analysis.behaviour.page.page import render_analysis
from headwise.analysis.behaviour.questions import ask
from headwise.analysis.behaviour.results import AnalysisRecord, RunAnalysis
from headwise.analysis.surroundings import machine, versions
from headwise.evaluation import Opened, check_same_items, model_of, open_part
from headwise.experiment.folders import RESULT
from headwise.experiment.outcomes import as_evaluated
from headwise.experiment.preparing import batches
from headwise.experiment.reading import read_result
from headwise.files import write_text
from headwise.models.base import HeadwiseModel
from headwise.tasks.outcome import Outcome
from headwise.training.progress import RunBars

PAGE, RECORD = "analysis.html", "analysis.json"
PROGRESS = "analysis"  # the folder in which finished ablations are kept
