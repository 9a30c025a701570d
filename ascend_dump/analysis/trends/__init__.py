"""Curves of modules and parameters over the steps of a run, their spikes, and the steps at which two runs part."""

from __future__ import annotations

from ascend_dump.analysis.trends.assemble import Trends, trends
from ascend_dump.analysis.trends.curves import Curve, CurveSpike
from ascend_dump.analysis.trends.export import FORMATS
from ascend_dump.analysis.trends.page_curves import page_curves
from ascend_dump.analysis.trends.parting import Parting
from ascend_dump.analysis.trends.quantities import QUANTITIES

__all__ = ["FORMATS", "QUANTITIES", "Curve", "CurveSpike", "Parting", "Trends", "page_curves", "trends"]
