# SPDX-License-Identifier: Apache-2.0
"""How the verbs ask a running coordinator something."""

from gangline.launch.contact import Contact as Contact
from gangline.launch.contact import RunContact as RunContact
