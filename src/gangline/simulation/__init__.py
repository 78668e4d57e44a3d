# SPDX-License-Identifier: Apache-2.0
"""The runtime's twin under a virtual clock: simulated workers, the same decisions, the same log."""

from gangline.simulation.course import Course as Course
from gangline.simulation.course import Outage as Outage
from gangline.simulation.course import Recovery as Recovery
from gangline.simulation.course import Switch as Switch
from gangline.simulation.run import SimulationResult as SimulationResult
from gangline.simulation.run import simulate as simulate
from gangline.simulation.scenario import Scenario as Scenario
from gangline.simulation.teams import TeamsResult as TeamsResult
from gangline.simulation.teams import simulate_teams as simulate_teams
from gangline.simulation.yardstick import SimulatedStep as SimulatedStep
