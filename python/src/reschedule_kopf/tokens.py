"""Tokens of the accounts that may send deliveries."""

import asyncio
import logging
import pathlib
import re
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import jwt

from reschedule_kopf.answers import Answer

logger = logging.getLogger(__name__)

# The time after which the keys are fetched again, so that a withdrawn key goes out of use.
_KEYS_LIFE = 3600.0
# The least time between two fetches, whatever tokens come: each fetch is two requests to the API server.
_FETCH_EVERY = 5.0
# How far the clocks of the API server and of this process may differ.
_LEEWAY = 60
_MAX_TOKEN = 16 << 10
_SIGNATURES = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
_OWN_NAMESPACE = pathlib.Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
# The account of a RescheduleSource. Knative cuts a long name, and puts a digest into it.
_IDENTITY = re.compile(
    r"[-.a-z0-9]{1,18}-oidc-sources\.reschedule\.dev-reschedulesource|[-.a-z0-9]{19,31}[0-9a-f]{32}[-a-z]{0,12}"
)


Fetch = Callable[[], Awaitable[tuple[dict[str, Any], dict[str, Any]]]]


def admitted(subjects: Collection[str]) -> Callable[[str], bool]:
    """Tells which accounts may send: the subjects, else every RescheduleSource of the own namespace."""
    if subjects:
        return frozenset(subjects).__contains__
    try:
        namespace = _OWN_NAMESPACE.read_text().strip()
    except OSError as e:
        raise ValueError(
            "--audience: the namespace of this process is not known: name the accounts with --subject"
        ) from e
    return sources_of(namespace)


def sources_of(namespace: str) -> Callable[[str], bool]:
    """The identities of all RescheduleSources of a namespace."""
    prefix = f"system:serviceaccount:{namespace}:"
    return lambda s: s.startswith(prefix) and _IDENTITY.fullmatch(s.removeprefix(prefix)) is not None


class Verifier:
    """Admits deliveries with a token of the cluster's API server, for the audience, of an account that is allowed."""

    def __init__(self, audience: str, allowed: Callable[[str], bool], fetch: Fetch) -> None:
        self._audience = audience
        self._allowed = allowed
        self._fetch = fetch
        self._issuer = ""
        self._keys: dict[str, jwt.PyJWK] = {}
        self._at = 0.0  # when the fetch of the keys began
        self._tried: float | None = None
        self._lock = asyncio.Lock()

    async def refusal(self, authorization: Sequence[str]) -> Answer | None:
        """Returns None for a delivery that is admitted, else the answer."""
        if len(authorization) != 1 or len(authorization[0]) > _MAX_TOKEN:
            return _unauthenticated("there is none")
        scheme, _, token = authorization[0].strip().partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return _unauthenticated("there is none")
        try:
            return await self._check(token.strip())
        except jwt.PyJWTError as e:
            logger.debug("A token is refused: %s", e)
            return _unauthenticated(f"it is forged, expired, or for another audience than {self._audience}")

    async def _check(self, token: str) -> Answer | None:
        # A token for another audience costs no keys. None of its claims is believed before its signature is checked.
        said = jwt.decode_complete(
            token,
            audience=self._audience,
            leeway=_LEEWAY,
            options={
                "verify_signature": False,
                "verify_aud": True,
                "verify_exp": True,
                "require": ["exp", "aud", "iss"],
            },
        )
        key_id, issuer = said["header"].get("kid"), said["payload"].get("iss")
        came = time.monotonic()
        if not self._signs(issuer, key_id) or came - self._at > _KEYS_LIFE:
            await self._refresh(issuer, key_id, came)
        if not self._signs(issuer, key_id) or time.monotonic() - self._at > _KEYS_LIFE:
            # That there is no such key is certain only when the keys were fetched after the token came.
            if self._at < came:
                return Answer(503, "the token cannot be checked now", {"Retry-After": "5"})
            return _unauthenticated("its key is not from this cluster")
        claims = jwt.decode(
            token,
            self._keys[key_id],
            algorithms=_SIGNATURES,
            audience=self._audience,
            issuer=self._issuer,
            leeway=_LEEWAY,
            options={"require": ["exp", "aud", "iss", "sub"]},
        )
        if not self._allowed(claims["sub"]):
            logger.warning("A delivery of another account is refused: --subject names the accounts: %s", claims["sub"])
            return Answer(403, f"the account in the token may not send events to this operator: {claims['sub']}")
        return None

    def _signs(self, issuer: object, key_id: object) -> bool:
        return bool(self._issuer) and issuer == self._issuer and key_id in self._keys

    async def _refresh(self, issuer: object, key_id: object, came: float) -> None:
        async with self._lock:
            now = time.monotonic()
            if (self._at >= came and self._issuer) or (self._tried is not None and now - self._tried < _FETCH_EVERY):
                return
            self._tried = now
            try:
                async with asyncio.timeout(10):
                    about, keys = await self._fetch()
                self._keys = {k.key_id: k for k in jwt.PyJWKSet.from_dict(keys).keys if k.key_id}
                self._issuer = str(about["issuer"])
                self._at = now
            except Exception:  # whatever it is, deliveries wait
                logger.exception("The keys to check the tokens of deliveries cannot be read; deliveries wait")


def _unauthenticated(why: str) -> Answer:
    return Answer(401, f"the delivery has no valid token: {why}", {"WWW-Authenticate": "Bearer"})
