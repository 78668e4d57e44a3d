# SPDX-License-Identifier: Apache-2.0
"""The event log: append-only files of JSON lines, one per process, merged by time when read."""

from gangline.eventlog.merge import find_logs as find_logs
from gangline.eventlog.merge import merge_logs as merge_logs
from gangline.eventlog.merge import read_run as read_run
from gangline.eventlog.paths import events_dir as events_dir
from gangline.eventlog.paths import log_path as log_path
from gangline.eventlog.reader import EVENT_KINDS as EVENT_KINDS
from gangline.eventlog.reader import LogNotes as LogNotes
from gangline.eventlog.reader import read_events as read_events
from gangline.eventlog.reader import tail_events as tail_events
from gangline.eventlog.sampling import SampledWriter as SampledWriter
from gangline.eventlog.writer import EventSink as EventSink
from gangline.eventlog.writer import EventWriter as EventWriter
from gangline.eventlog.writer import NullWriter as NullWriter
