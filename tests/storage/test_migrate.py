"""Records of an older identity version get the identifiers of today; nothing is trained again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lp_sweep.storage import identity
from lp_sweep.storage import migrate as migration
from lp_sweep.storage.identity import canonical_json, trial_id
from lp_sweep.storage.migrate import Migrated, migrate
from lp_sweep.storage.packs import compact
from lp_sweep.storage.specs import Recipe, TaskDefinition, TrialSpec, trial_spec_from_canonical
from lp_sweep.storage.store import Store
from tests.support.storeworkers import predictions

SPEC = TrialSpec(
    model_fingerprint="hub:bert@abc",
    kept_layers=(1, 2),
    task=TaskDefinition(text_columns=("sentence",), labels=("a", "ü")),
    data_fingerprint="sha256:0af",
    seed=1,
)


def record(spec: TrialSpec) -> dict[str, Any]:
    return {
        "trial_id": trial_id(spec),
        "identity_version": identity.IDENTITY_VERSION,
        "spec": canonical_json(spec),
        "seed": spec.seed,
        "last": spec.seed / 8,
    }


@pytest.fixture
def store(location: str) -> Store:
    """Three trials of version 1, the first with predictions."""
    store = Store(location, create=True)
    for seed in (1, 2, 3):
        row = record(replace(SPEC, seed=seed))
        if seed == 1:
            store.put("predictions", row["trial_id"], predictions(row["trial_id"]))
        store.put("trials", row["trial_id"], [row])
    return store


def second_version(monkeypatch: pytest.MonkeyPatch, version: int = 2) -> None:
    """Version 2: the seed counts from 100. Version 3: a longer default."""

    def to_2(spec: dict[str, Any]) -> dict[str, Any]:
        return {**spec, "seed": spec["seed"] + 100}

    def to_3(spec: dict[str, Any]) -> dict[str, Any]:
        return {**spec, "recipe": {**spec.get("recipe", {}), "max_length": 64}}

    monkeypatch.setattr(identity, "IDENTITY_VERSION", version)
    monkeypatch.setattr(migration, "MIGRATIONS", {1: to_2, 2: to_3})


def test_there_is_nothing_to_migrate_today(store: Store) -> None:
    assert migration.MIGRATIONS == {}, "a migration needs a new IDENTITY_VERSION"
    before = store.read_all("trials").rows
    assert migrate(store) == Migrated(moved=0, kept=3, unknown=0)
    assert store.read_all("trials").rows == before


@pytest.mark.parametrize("packed", [False, True], ids=["single-files", "packs"])
def test_records_are_published_under_their_new_identifiers(
    store: Store, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    old = store.read_all("trials").rows.to_pylist()
    if packed:
        compact(store, settle=0)
    second_version(monkeypatch)
    assert migrate(store) == Migrated(moved=3, kept=0, unknown=0)
    new = [trial_id(replace(SPEC, seed=seed + 100)) for seed in (1, 2, 3)]
    assert all(name.startswith("t2-") for name in new)
    rows = {row["trial_id"]: row for row in store.read_all("trials").rows.to_pylist()}
    assert rows.keys() == {row["trial_id"] for row in old} | set(new)
    for seed, name in zip((1, 2, 3), new, strict=True):
        assert rows[name]["last"] == seed / 8
        assert rows[name]["identity_version"] == 2
        assert json.loads(rows[name]["spec"])["seed"] == seed + 100
        assert trial_id(trial_spec_from_canonical(rows[name]["spec"])) == name
    assert [r["trial_id"] for r in store.read("predictions", new[0])] == [new[0]] * 20
    assert store.find("predictions", new[1]) is None


def test_twice_is_harmless_and_old_records_stay(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_version(monkeypatch)
    migrate(store)
    before = store.read_all("trials").rows
    assert migrate(store) == Migrated(moved=0, kept=3, unknown=0)
    assert store.read_all("trials").rows == before


def test_two_versions_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    second_version(monkeypatch, version=3)
    assert migrate(store).moved == 3
    recipe = Recipe(max_length=64)
    assert store.has("trials", trial_id(replace(SPEC, seed=101, recipe=recipe)))


def test_a_record_that_tells_too_little_is_counted_and_left(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = [{"spec": None}, {"identity_version": None}, {"identity_version": 9}]
    changes += [{"spec": "{"}, {"spec": '{"seed": 1}'}, {"spec": "[]"}]
    for number, columns in enumerate(changes):
        name = f"t1-x{number}"
        store.put("trials", name, [record(SPEC) | {"trial_id": name} | columns])
    second_version(monkeypatch)
    assert migrate(store) == Migrated(moved=3, kept=0, unknown=6)
    for number in range(6):
        assert store.read("trials", f"t1-x{number}")[0]["last"] == 0.125
