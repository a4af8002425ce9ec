"""How a source is to be read, where the file itself does not say it: a CSV's separator, a database's query, a matrix's name."""

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from intarsia.errors import InputError
from intarsia.site.data.column_rules import Rules

DATABASES = ("postgresql://", "postgres://")  # how a source that is no file begins


@dataclass(frozen=True)
class Reading:
    """What the site says about its source; None is found out from the source itself."""

    separator: str | None = None  # CSV: between two cells
    decimal: str | None = None  # CSV: "." or ","
    encoding: str | None = None  # CSV: "utf-8", "latin-1", …
    query: str | None = None  # database: the rows to read
    password_file: str | None = None  # database: a file with the password, readable by its owner only
    dataset: str | None = None  # zarr, HDF5: the path of the matrix inside the file
    names: str | None = None  # zarr, HDF5: the path of the list of the matrix's column names
    id: str | None = None  # the id column: a CSV keeps its text, a database is ordered by it
    rules: Rules = field(default_factory=Rules)  # which texts mean "missing"

    @classmethod
    def of(cls, given: "Mapping[str, Any] | Reading | None", *, id: str | None = None, rules: Rules | None = None) -> "Reading":
        """The site's settings by name, checked."""
        if given is not None and not isinstance(given, Reading):
            known = [f.name for f in fields(cls) if f.name not in ("id", "rules")]
            for key, value in given.items():
                if key not in known:
                    raise InputError(f"Nothing is known about reading by the name {key!r}. Known: {', '.join(known)}.")
                if value is not None and not isinstance(value, str):
                    raise InputError(f"{key} must be text in quotes.")
        options = given if isinstance(given, Reading) else cls(**(given or {}))
        if options.separator is not None and len(options.separator.encode()) != 1:
            raise InputError("The separator of a CSV file is one character, such as ';' or a tabulator.")
        if options.decimal not in (None, ".", ","):
            raise InputError("The decimal sign of a CSV file is '.' or ','.")
        if options.decimal is not None and options.decimal == options.separator:
            raise InputError("The separator and the decimal sign of a CSV file cannot be the same.")
        if options.encoding is not None:
            try:
                codecs.lookup(options.encoding)
            except LookupError:
                raise InputError(f"No encoding is called {options.encoding!r}. Common ones: utf-8, latin-1, cp1252.") from None
        chosen = {f.name: getattr(options, f.name) for f in fields(cls)}
        return cls(**(chosen | {"id": id, "rules": rules or Rules()}))
