"""Every encoding of the catalog keeps the contract."""

from __future__ import annotations

import importlib.util

import pytest

from ropewalk import catalog, testing

RECORDS = catalog.catalog()
SAMPLE = ("rope", "alibi", "fox", "t5")


def there(record: catalog.Record) -> bool:
    """Whether the record's module was written yet."""
    try:
        return importlib.util.find_spec(record.factory.partition(":")[0]) is not None
    except ModuleNotFoundError:
        return False


@pytest.mark.parametrize("check", testing.checks())
@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r.slug)
def test_contract(record, check):
    for why in testing.check_encoding(record, checks=[check]).values():
        pytest.skip(why)


@pytest.mark.slow
@pytest.mark.parametrize("check", sorted(testing.SLOW))
@pytest.mark.parametrize("slug", SAMPLE)
def test_contract_of_compilers(slug, check):
    for why in testing.check_encoding(catalog.record(slug), checks=[check]).values():
        pytest.skip(why)
