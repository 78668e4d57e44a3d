# SPDX-License-Identifier: Apache-2.0
"""The page of a run: its logs folded into numbers, and one file of HTML that draws them."""

from gangline.observe.page.bill import Price as Price
from gangline.observe.page.comparing import Comparison as Comparison
from gangline.observe.page.fold import ReportTimeoutError as ReportTimeoutError
from gangline.observe.page.making import compare_folders as compare_folders
from gangline.observe.page.making import make_page as make_page
