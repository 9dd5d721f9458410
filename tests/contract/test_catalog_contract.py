"""Every encoding of the catalog keeps the contract."""

from __future__ import annotations

import pytest

from ropewalk import catalog, testing

RECORDS = catalog.catalog()
SAMPLE = ("rope", "alibi", "fox", "t5")


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
