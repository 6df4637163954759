"""SCH-1, SCH-3: the example's contracts are in step with its models, and their history is honest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from bus.contracts.catalogue import Catalogue, Contract
from bus.contracts.check import check
from bus.contracts.json_text import dump
from bus.contracts.models import load_model, schema_of, version_said
from bus.contracts.well_formed import validator_of
from schemas import brief

CATALOGUE = Catalogue.read(Path(__file__).parents[2] / "schemas")
CONTRACTS = list(CATALOGUE.contracts.values())


def model_of(contract: Contract) -> type[BaseModel]:
    assert contract.entry.model is not None
    return load_model(contract.entry.model)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.type)
def test_a_model_and_its_contract_are_in_step(contract: Contract) -> None:
    model = model_of(contract)
    assert version_said(model, contract.type) == contract.newest.number
    assert dump(schema_of(model)) == contract.newest.data


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.type)
def test_the_newest_model_reads_every_minor_of_its_major(contract: Contract) -> None:
    for version in contract.of_major(contract.newest.number[0]):
        assert isinstance(version.schema, dict)
        for example in version.schema["examples"]:
            model_of(contract).model_validate(example)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.type)
def test_every_version_reads_the_newest_example_of_its_major(contract: Contract) -> None:
    for major in contract.majors:
        versions = contract.of_major(major)
        newest: Any = versions[-1].schema
        for version in versions:
            assert validator_of(version.schema).is_valid(newest["examples"][0])


def test_every_payload_of_the_example_is_a_contract() -> None:
    said = {model.__contract__.partition("@")[0] for model in vars(brief).values() if hasattr(model, "__contract__")}
    assert said == CATALOGUE.contracts.keys()
    assert all(one.release is not None for contract in CONTRACTS for one in contract.versions)


def test_the_catalogue_has_nothing_to_say() -> None:
    assert check(CATALOGUE) == []


def test_one_contract_has_three_minors_and_one_has_two_majors() -> None:
    assert [one.number for one in CATALOGUE.contracts["brief_ready"].versions] == [(1, 0), (1, 1), (1, 2)]
    assert CATALOGUE.contracts["review_request"].majors == [1, 2]
