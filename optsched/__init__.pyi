"""What `optsched` has; each name is loaded when it is first asked for."""

from .calibrate.library import cost_model as cost_model
from .check import check_result as check_result
from .check import check_schedule as check_schedule
from .library import (
    load_instance as load_instance,
)
from .library import (
    load_result as load_result,
)
from .library import (
    load_results as load_results,
)
from .library import (
    load_suite as load_suite,
)
from .library import (
    save_instance as save_instance,
)
from .library import (
    save_result as save_result,
)
from .methods.bound import all_bounds as all_bounds
from .methods.bound import bound as bound
from .methods.bound import bound_names as bound_names
from .methods.export import export_model as export_model
from .methods.plan import method_names as method_names
from .methods.policies import policy_names as policy_names
from .methods.simulate import simulate as simulate
from .methods.solve import solve as solve
from .model.cluster import (
    CacheMode as CacheMode,
)
from .model.cluster import (
    CacheRules as CacheRules,
)
from .model.cluster import (
    Link as Link,
)
from .model.cluster import (
    Role as Role,
)
from .model.cluster import (
    ViewAge as ViewAge,
)
from .model.cost import CostModel as CostModel
from .model.domain import replace as replace
from .model.errors import InfeasibleInstanceError as InfeasibleInstanceError
from .model.errors import InputError as InputError
from .model.instance import (
    Instance as Instance,
)
from .model.instance import (
    Limits as Limits,
)
from .model.instance import (
    Machine as Machine,
)
from .model.instance import (
    MachineGroup as MachineGroup,
)
from .model.instance import (
    Request as Request,
)
from .model.instance import (
    Rules as Rules,
)
from .model.objectives import Objective as Objective
from .model.objectives import gap as gap
from .model.prefixes import PrefixNode as PrefixNode
from .model.prefixes import PrefixTree as PrefixTree
from .model.restrictions import Restrictions as Restrictions
from .model.result import Badge as Badge
from .model.result import Result as Result
from .model.result import Results as Results
from .model.result import Status as Status
from .model.schedule import Assignment as Assignment
from .model.schedule import Batch as Batch
from .model.schedule import Move as Move
from .model.schedule import Schedule as Schedule
from .model.timeline import Moment as Moment
from .model.timeline import timeline as timeline
from .simulator.replica import NoBatchError as NoBatchError
from .simulator.replica import Policy as Policy
from .solvers.formulation import Formulation as Formulation
from .study.compare import Comparison as Comparison
from .study.compare import compare as compare
from .version import __version__ as __version__
