"""Who may send, how much, and how long. No API server is needed."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa

from reschedule_kopf import server, tokens
from reschedule_kopf.answers import Answer, after
from reschedule_kopf.operator import Delivery

KEY = rsa.generate_private_key(65537, 2048)
OTHER = rsa.generate_private_key(65537, 2048)
SOURCE = "system:serviceaccount:ops:source-oidc-sources.reschedule.dev-reschedulesource"


def jwks(key: rsa.RSAPrivateKey, name: str) -> dict[str, Any]:
    made: dict[str, Any] = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {"keys": [{**made, "kid": name, "use": "sig", "alg": "RS256"}]}


def token(key: rsa.RSAPrivateKey = KEY, kid: str = "one", **claims: Any) -> str:
    said = {"iss": "https://cluster", "aud": ["sites"], "sub": SOURCE, "exp": time.time() + 600, **claims}
    return jwt.encode(said, key, "RS256", {"kid": kid})


class Keys:
    """The API server's keys."""

    def __init__(self) -> None:
        self.fetched = 0
        self.fails = False

    async def __call__(self) -> tuple[dict[str, Any], dict[str, Any]]:
        self.fetched += 1
        if self.fails:
            raise ConnectionError("no API server")
        return {"issuer": "https://cluster"}, jwks(KEY, "one")


def refused(verifier: tokens.Verifier, *authorization: str) -> int:
    answer = asyncio.run(verifier.refusal(authorization))
    return answer.status if answer is not None else 0


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ([], 401),
        (["Bearer"], 401),
        (["Basic x"], 401),
        (["Bearer " + "x" * 20000], 401),
        (["Bearer not.a.token"], 401),
        (["Bearer " + token()], 0),
        (["Bearer " + token(), "Bearer " + token()], 401),
        (["bearer " + token()], 0),
        (["Bearer " + token(aud="other")], 401),
        (["Bearer " + token(exp=time.time() - 120)], 401),
        (["Bearer " + token(exp=None)], 401),
        (["Bearer " + token(nbf=time.time() + 600)], 401),
        (["Bearer " + token(iss="https://another")], 401),
        (["Bearer " + token(OTHER)], 401),
        (["Bearer " + token(OTHER, "two")], 401),
        (
            ["Bearer " + jwt.encode({"aud": "sites", "sub": SOURCE, "iss": "https://cluster", "exp": 9e9}, "", "none")],
            401,
        ),
        (
            ["Bearer " + token(sub="system:serviceaccount:other:source-oidc-sources.reschedule.dev-reschedulesource")],
            403,
        ),
        (["Bearer " + token(sub="system:serviceaccount:ops:default")], 403),
    ],
)
def test_tokens(authorization: list[str], status: int) -> None:
    """Only a token of a RescheduleSource of the own namespace, for the audience, signed by the cluster."""
    verifier = tokens.Verifier("sites", tokens.sources_of("ops"), Keys())
    assert refused(verifier, *authorization) == status


def test_keys_are_fetched_seldom() -> None:
    """Tokens with other keys cost the API server two requests in five seconds, and other audiences none."""
    keys = Keys()
    verifier = tokens.Verifier("sites", tokens.sources_of("ops"), keys)
    assert refused(verifier, "Bearer " + token(aud="other")) == 401
    assert keys.fetched == 0
    for _ in range(9):
        assert refused(verifier, "Bearer " + token()) == 0
    assert refused(verifier, "Bearer " + token(OTHER, "two")) == 503  # it may be a new key
    assert keys.fetched == 1


def test_keys_that_cannot_be_read() -> None:
    """A delivery that cannot be judged comes again."""
    keys = Keys()
    keys.fails = True
    assert refused(tokens.Verifier("sites", tokens.sources_of("ops"), keys), "Bearer " + token()) == 503


def test_subjects() -> None:
    """Named accounts take the place of the sources of the namespace, which must be known."""
    assert tokens.admitted(["system:serviceaccount:ops:caller"])("system:serviceaccount:ops:caller")
    assert not tokens.admitted(["system:serviceaccount:ops:caller"])(SOURCE)
    with pytest.raises(ValueError, match="--subject"):
        tokens.admitted([])


@asynccontextmanager
async def door(
    deliver: Any, verifier: tokens.Verifier | None = None
) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    runner = web.ServerRunner(web.Server(server.Door(verifier, deliver).handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]
    async with aiohttp.ClientSession() as session:
        yield session, f"http://{host}:{port}"
    await runner.cleanup()


def test_requests() -> None:
    """Probes, methods, sizes, formats, and many at a time."""

    async def body() -> None:
        seen: list[Delivery] = []
        gate, arrived = asyncio.Event(), asyncio.Semaphore(0)

        async def deliver(delivery: Delivery) -> Answer:
            seen.append(delivery)
            if delivery.key.startswith("Slow"):
                if sum(d.key.startswith("Slow") for d in seen) == 4:
                    arrived.release()
                await gate.wait()
            return Answer(204, "", {"Reschedule-After": "5ms"})

        async with door(deliver) as (session, url):

            async def post(data: Any, **headers: str) -> int:
                async with session.post(
                    url, data=data, headers={k.replace("_", "-"): v for k, v in headers.items()}
                ) as r:
                    return r.status

            async with session.get(url) as r:
                assert r.status == 200
            async with session.put(url) as r:
                assert (r.status, r.headers["Allow"]) == (405, "GET, HEAD, POST")
            assert await post(b"{}") == 400
            assert await post(b"x", Ce_Reschedulekey="Case%2Fops%2F%C3%A9") == 204
            about = b'{"kind":"Case","apiVersion":"a/v1","namespace":"ops","name":"x"}'
            assert await post(about, Ce_Reschedulekey="Case/ops/x", Content_Type="application/json") == 204
            assert await post(about, Ce_Reschedulekey="Case/ops/y", Content_Type="application/json") == 204
            event = b'{"reschedulekey":"Case/ops/z","data":{"kind":"Pod"}}'
            assert await post(event, Content_Type="application/cloudevents+json") == 204
            assert await post(b"[" * 100000, Content_Type="application/cloudevents+json") == 400
            assert seen == [
                Delivery("Case/ops/é"),
                Delivery("Case/ops/x", "a/v1"),
                Delivery("Case/ops/y"),
                Delivery("Case/ops/z"),
            ]
            assert await post(b"x" * (server.MAX_BODY + 1), Ce_Reschedulekey="Case/ops/x") == 413

            async def chunks() -> AsyncIterator[bytes]:
                for _ in range(9):
                    yield b"x" * (1 << 20)

            assert await post(chunks(), Ce_Reschedulekey="Case/ops/x") == 413
            slow = [
                asyncio.create_task(post(b"x" * server.MAX_BODY, Ce_Reschedulekey=f"Slow/ops/{i}")) for i in range(4)
            ]
            await arrived.acquire()
            assert await post(b"x", Ce_Reschedulekey="Case/ops/x") == 503  # 32 MiB are under way
            gate.set()
            assert set(await asyncio.gather(*slow)) == {204}
            assert await post(b"x", Ce_Reschedulekey="Case/ops/x") == 204

    asyncio.run(asyncio.wait_for(body(), 30))


def test_refused_bodies_are_not_read() -> None:
    """Without a valid token nothing is delivered."""

    async def body() -> None:
        async def deliver(_: Delivery) -> Answer:
            raise AssertionError("it was delivered")

        verifier = tokens.Verifier("sites", tokens.sources_of("ops"), Keys())
        headers = {"Ce-Reschedulekey": "Case/ops/x"}
        async with door(deliver, verifier) as (session, url), session.post(url, data=b"{}", headers=headers) as r:
            assert (r.status, r.headers["WWW-Authenticate"]) == (401, "Bearer")

    asyncio.run(asyncio.wait_for(body(), 30))


def test_durations() -> None:
    """Waits are rounded up, as nothing is early, and at most 100 years, which a source takes."""
    assert [after(s) for s in (0, 0.0001, 1, 1.0001, 36000, -1, 1e10, float("inf"))] == [
        "0ms",
        "1ms",
        "1000ms",
        "1001ms",
        "36000000ms",
        "0ms",
        "3155760000000ms",
        "3155760000000ms",
    ]
