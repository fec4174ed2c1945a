"""The reports at the end of a run, of fine-tuning and of pretraining."""

from training.report.checks import data_warnings, result_warnings, unseen_labels
from training.report.finetuning import DevFile, RunReport, write_report

__all__ = ["DevFile", "RunReport", "data_warnings", "result_warnings", "unseen_labels", "write_report"]
