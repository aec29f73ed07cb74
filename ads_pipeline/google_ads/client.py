"""Builds the official client, one for each login id, and keeps its services as long as a step needs them."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.ads.googleads.client import GoogleAdsClient
from google.auth.exceptions import GoogleAuthError, MalformedError, TransportError

from ads_pipeline.google_ads.configuration import ClientConfiguration, installed_versions
from ads_pipeline.google_ads.faults.fault_reading import RequestContext

CLIENT_LOGGER: Final = "google.ads.googleads"
STREAM_SECONDS: Final = 3_600.0  # the client has no deadline of its own, and streams have hung for hours
CALL_SECONDS: Final = 300.0


class Clients:
    """The clients of one step. Building the first client for a login id fetches a token: a network call.

    A service must outlive its streams: when Python frees it, its channel closes and the streams end as cancelled.
    """

    def __init__(self, configuration: ClientConfiguration, api_version: str) -> None:
        # At WARNING the client logs each failed request, at INFO the queries, at DEBUG rows.
        logging.getLogger(CLIENT_LOGGER).setLevel(logging.ERROR)
        self.api_version = api_version
        self._configuration = configuration
        self._clients: dict[str | None, Any] = {}
        self._services: dict[tuple[str | None, str], Any] = {}

    @property
    def default_login(self) -> str | None:
        """The configured login-customer-id."""
        return self._configuration.login_customer_id

    def request_context(
        self,
        login_customer_id: str | None,
        *,
        parked_names: Mapping[str, str] | None = None,
        is_single_day: bool = False,
        repeat: str = "",
    ) -> RequestContext:
        """The facts for the message of a failed request: what a failure parks, or the command that asks again."""
        scrub = self._configuration.scrubber
        client = self._clients.get(login_customer_id)
        return RequestContext(
            api_version=self.api_version,
            login_customer_id=login_customer_id,
            versions=installed_versions(),
            scrub=scrub.including(getattr(getattr(client, "credentials", None), "token", None)),
            is_single_day=is_single_day,
            parked_names=parked_names or {},
            repeat=repeat,
        )

    def search_stream(
        self, *, customer_id: str, login_customer_id: str | None, query: str, timeout: float | None = None
    ) -> Any:
        """Open a stream. The result yields batches and can be cancelled. By default it may take an hour."""
        service = self._service("GoogleAdsService", login_customer_id)
        return service.search_stream(customer_id=customer_id, query=query, timeout=timeout or STREAM_SECONDS)

    def validate(self, *, customer_id: str, login_customer_id: str | None, query: str) -> None:
        """Ask Google whether it would accept a query. Returns when it would."""
        service = self._service("GoogleAdsService", login_customer_id)
        request = {"customer_id": customer_id, "query": query, "validate_only": True}
        service.search(request=request, timeout=CALL_SECONDS)

    def list_accessible_customers(self) -> Iterator[str]:
        """The ids of the accounts that the credentials reach directly."""
        answer = self._service("CustomerService", self.default_login).list_accessible_customers(timeout=CALL_SECONDS)
        for name in answer.resource_names:
            yield name.removeprefix("customers/")

    def _service(self, name: str, login_customer_id: str | None) -> Any:
        key = login_customer_id, name
        if key not in self._services:
            service = self._client(login_customer_id).get_service(name)
            if name == "GoogleAdsService":
                # Otherwise opening a stream waits for the first batch, and cannot be cancelled while it waits.
                service.transport.search_stream._prefetch_first_result_ = False
            self._services[key] = service
        return self._services[key]

    def _client(self, login_customer_id: str | None) -> Any:
        if login_customer_id not in self._clients:
            values = dict(self._configuration.values)
            values.pop("login_customer_id", None)
            login = {} if login_customer_id is None else {"login_customer_id": login_customer_id}
            try:
                client = GoogleAdsClient.load_from_dict(values | login, version=self.api_version)
            except GoogleAuthError:
                raise
            except ValueError as error:  # its text may quote a key
                raise MalformedError(f"the credentials cannot be used: {type(error).__name__}") from None
            except (TypeError, LookupError, AttributeError) as error:  # such as a page with the status 200
                raise TransportError(f"the answer of the token server cannot be read: {error}") from None
            self._clients[login_customer_id] = client
        return self._clients[login_customer_id]
