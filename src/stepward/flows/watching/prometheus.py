"""A run's figures for Prometheus: gauges and counters on http://127.0.0.1:PORT/metrics."""

from collections.abc import Callable, Iterable
from typing import Any

from stepward.flows.watching.observe import Exporter
from stepward.prm.errors import ConfigError

_COUNTERS = {
    "problems": "Problems finished by this process.",
    "problems_without_rows": "Problems that have no rows.",
    "problems_degenerate": "Problems whose draws are copies.",
    "solutions": "Rows made.",
    "shards": "Shards written.",
    "tokens": "Sampled tokens.",
    "prompt_tokens": "Tokens of the prefixes that were sent.",
    "likelihoods": "Continuations that were scored, apart from draws: they pass the prefix cache by.",
    "engine_retries": "Requests that were sent again.",
}
_GAUGES = {
    "problems_planned": "Problems to do.",
    "problems_found": "Problems that an earlier run had finished.",
    "tokens_per_s": "Sampled tokens a second over the last minute.",
    "in_flight": "Requests in flight.",
    "queue_age_s": "Age of the oldest request in flight, in seconds.",
    "prefix_hit_rate": "Share of prompt tokens from the prefix cache.",
    "prefix_hits_of_possible": "The same over what a prefix cache without limits would have had.",
    "fault_share": "Share of rollouts that failed in the engine.",
    "solve_rate": "Right among right and wrong solutions.",
    "n_unique_share": "New texts among the draws beyond the first at their prefix.",
}


def exporter(port: int, host: str = "127.0.0.1") -> Exporter:
    """What serves a run's figures.

    Args:
        port: 0 takes a free one.
        host: The loopback by default: figures name the run, and the endpoint asks for no password.
    """

    def start(state: Callable[[], dict[str, Any]]) -> Callable[[], None]:
        """Raises ConfigError where the client library is missing or the port is taken."""
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ImportError as fault:
            raise ConfigError(
                ["metrics_port: needs prometheus_client; pip install prometheus_client"]
            ) from fault
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(state))
        try:
            server, thread = start_http_server(port, addr=host, registry=registry)
        except OSError as fault:
            raise ConfigError([f"metrics_port: {host}:{port} cannot be listened on: {fault}"]) from fault

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return stop

    return start


class _Collector:
    """Turns the state into metric families at each scrape; what is not known is left out."""

    def __init__(self, state: Callable[[], dict[str, Any]]) -> None:
        self._state = state

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        state = self._state()
        run = [str(state["run"]), str(state["part"] or "")]
        for names, family in ((_COUNTERS, CounterMetricFamily), (_GAUGES, GaugeMetricFamily)):
            for name, help_text in names.items():
                if state[name] is not None:
                    metric = family(f"stepward_{name}", help_text, labels=["run", "part"])
                    metric.add_metric(run, float(state[name]))
                    yield metric
        shares = GaugeMetricFamily(
            "stepward_outcome_share", "Share of draws by outcome.", labels=["run", "part", "outcome"]
        )
        for outcome, share in state["outcome_shares"].items():
            shares.add_metric([*run, outcome], share)
        yield shares
        warnings = GaugeMetricFamily(
            "stepward_warning", "1 while it lasts.", labels=["run", "part", "warning"]
        )
        for name in state["warnings"]:
            warnings.add_metric([*run, name], 1)
        yield warnings
