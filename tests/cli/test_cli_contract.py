from __future__ import annotations

import json
from typing import Any

from graphcache.contract import RULES


def test_a_good_backend_exits_0(run: Any) -> None:
    ran = run("contract", "test_contract:Good")
    assert ran.code == 0
    assert "pass" in ran.out
    assert "fail" not in ran.out


def test_a_broken_one_exits_1_and_json_tells_each_rule(run: Any) -> None:
    ran = run("contract", "test_contract:Trusting", "--key", "prefill/causal/1x8", "--json")
    assert ran.code == 1
    results = json.loads(ran.out)
    assert [result["rule"] for result in results] == list(RULES)
    failed = [result for result in results if result["verdict"] == "fail"]
    assert failed
    assert all("prefill/causal/1x8: it was loaded" in result["detail"] for result in failed)


def test_an_unknown_backend_exits_2(run: Any) -> None:
    assert run("contract", "no-such").code == 2
