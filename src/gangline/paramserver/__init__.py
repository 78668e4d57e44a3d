# SPDX-License-Identifier: Apache-2.0
"""Parameter servers: who may go on (`clocks`), and `gangline.paramserv` (`functional`)."""
