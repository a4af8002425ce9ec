"""What came of the subjects that were predicted: yes/no responses from a table of the owner's, in the order of the prediction."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from intarsia.errors import InputError
from intarsia.site.data.table import Table
from intarsia.site.prepared_table import PreparedTable
from intarsia.site.response_kinds import kinds_of
from intarsia.wire.study import Study

if TYPE_CHECKING:
    from intarsia.site.site import Site


def observed(site: "Site", study: Study, data: Any, ids: Sequence[Any]) -> dict[str, NDArray[np.float64]]:
    """0 or 1 of every predicted subject, by yes/no response. The table has the site's id column and those responses."""
    kinds = {name: said for name, said in kinds_of(study, site.name, site.kinds).items() if said["kind"] == "binary"}
    if not kinds:
        raise InputError(f"Site {site.name!r} has no yes/no response in this study: there is nothing to score.")
    table = Table.open(data, id=site.roles["id"], features=(), responses=list(kinds))
    place = {str(name): row for row, name in enumerate(table.ids())}
    missing = sum(str(name) not in place for name in ids)
    if missing:
        raise InputError(f"{missing} of the {len(ids)} predicted subjects are not in the table of what came. Leave none out.")
    rows = [place[str(name)] for name in ids]
    found = PreparedTable.of(table, kinds, rows).prepared
    return {name: found[name].values for name in kinds}
