//! The settings by their names in the environment and in flags.

use super::SettingsError;

/// What a setting that the environment or a flag can give is read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Integer,
    Boolean,
}

/// The settings that the environment and flags can give: all but tables of
/// names that the operator chooses.
pub(super) const SCALARS: &[(&str, Kind)] = &[
    ("server.listen", Kind::Text),
    ("server.http_listen", Kind::Text),
    ("server.reflection", Kind::Boolean),
    ("server.drain_grace_seconds", Kind::Integer),
    ("server.persist_bytes_in_flight", Kind::Integer),
    ("server.persist_wait_seconds", Kind::Integer),
    ("store.data_dir", Kind::Text),
    ("store.metadata", Kind::Text),
    ("store.acquire_seconds", Kind::Integer),
    ("store.pools.write", Kind::Integer),
    ("store.pools.read", Kind::Integer),
    ("store.pools.background", Kind::Integer),
    ("blobs.kind", Kind::Text),
    ("blobs.bucket", Kind::Text),
    ("blobs.endpoint", Kind::Text),
    ("blobs.region", Kind::Text),
    ("blobs.prefix", Kind::Text),
    ("blobs.path_style", Kind::Boolean),
    ("seal.when", Kind::Text),
    ("seal.raw_bytes", Kind::Integer),
    ("seal.old_raw_bytes", Kind::Integer),
    ("seal.old_seconds", Kind::Integer),
    ("seal.idle_seconds", Kind::Integer),
    ("seal.oldest_seconds", Kind::Integer),
    ("seal.interval_seconds", Kind::Integer),
    ("outputs.bytes_max", Kind::Integer),
    ("cache.segment_bytes", Kind::Integer),
    ("cache.window_bytes", Kind::Integer),
    ("sweep.interval_seconds", Kind::Integer),
    ("sweep.grace_seconds", Kind::Integer),
    ("sweep.erase_max", Kind::Integer),
    ("compaction.snip_percent", Kind::Integer),
    ("compaction.snip_win_percent", Kind::Integer),
    ("compaction.snip_over_characters", Kind::Integer),
    ("compaction.snip_kept_tokens", Kind::Integer),
    ("compaction.prepare_percent", Kind::Integer),
    ("compaction.summarize_percent", Kind::Integer),
    ("compaction.collapse_percent", Kind::Integer),
    ("compaction.target_percent", Kind::Integer),
    ("compaction.tail_percent", Kind::Integer),
    ("compaction.tail_tokens", Kind::Integer),
    ("compaction.slot_percent", Kind::Integer),
    ("compaction.slot_tokens_min", Kind::Integer),
    ("compaction.slot_tokens_max", Kind::Integer),
    ("compaction.ledger_percent", Kind::Integer),
    ("compaction.pins_percent", Kind::Integer),
    ("compaction.wait_seconds", Kind::Integer),
    ("compaction.ceiling_percent", Kind::Integer),
    ("compaction.floor_percent", Kind::Integer),
    ("compaction.pin_statements", Kind::Boolean),
    ("compaction.prompt", Kind::Text),
    ("compaction.prompt_file", Kind::Text),
    ("summarizer.api", Kind::Text),
    ("summarizer.endpoint", Kind::Text),
    ("summarizer.model", Kind::Text),
    ("summarizer.capable_model", Kind::Text),
    ("summarizer.capable_over_tokens", Kind::Integer),
    ("summarizer.source_tokens", Kind::Integer),
    ("summarizer.key", Kind::Text),
    ("summarizer.key_file", Kind::Text),
    ("summarizer.key_header", Kind::Text),
    ("summarizer.connect_seconds", Kind::Integer),
    ("summarizer.attempt_seconds", Kind::Integer),
    ("summarizer.cooldown_seconds", Kind::Integer),
    ("summarizer.breaker_failures", Kind::Integer),
    ("summarizer.breaker_seconds", Kind::Integer),
    ("log.format", Kind::Text),
    ("log.level", Kind::Text),
];

/// Variables that begin like settings and are none.
const OTHER_VARIABLES: &[&str] = &["TURNKEEP_CONFIG", "TURNKEEP_ADDRESS", "TURNKEEP_TRANSCRIPTS"];
/// Beginnings of variables that only tests read.
const TEST_VARIABLES: &[&str] = &["TURNKEEP_TEST_", "TURNKEEP_REQUIRE_", "TURNKEEP_BENCH_"];

/// The setting that a variable gives; nothing if the variable is not ours.
pub(super) fn setting_of_variable(
    name: &str,
    value: &str,
) -> Result<Option<(&'static str, Kind)>, SettingsError> {
    let Some(rest) = name.strip_prefix("TURNKEEP_") else { return Ok(None) };
    let is_other =
        OTHER_VARIABLES.contains(&name) || TEST_VARIABLES.iter().any(|prefix| name.starts_with(prefix));
    match SCALARS.iter().find(|(path, _)| variable_of_setting(path) == name) {
        Some((path, kind)) => Ok(Some((path, *kind))),
        None if is_other || is_of_service_link(rest, value) => Ok(None),
        None => Err(SettingsError::Unknown { origin: name.to_owned() }),
    }
}

/// Whether Kubernetes, or Docker for a link, has set a variable to say where a
/// service is whose name begins with `turnkeep`; `name` is the part behind
/// `TURNKEEP_`. Sources: Kubernetes, "Accessing the Service: Environment
/// variables"; Docker, "Legacy container links".
fn is_of_service_link(name: &str, value: &str) -> bool {
    const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_url = || {
        PROTOCOLS.iter().any(|protocol| value.starts_with(&format!("{}://", protocol.to_ascii_lowercase())))
    };
    // The service may be `turnkeep-grpc`: then more words come first.
    let words: Vec<_> = name.split('_').collect();
    let is_link = |words: &[&str]| match words {
        ["SERVICE", "HOST"] | ["SERVICE", "PORT", ..] => true,
        ["PORT"] => is_url(),
        ["PORT", number, protocol] | ["PORT", number, protocol, "PROTO" | "PORT" | "ADDR"] => {
            is_number(number) && PROTOCOLS.contains(protocol)
        }
        _ => false,
    };
    let of_docker = match words.as_slice() {
        ["NAME"] => value.starts_with('/'),
        ["ENV", ..] => true,
        _ => false,
    };
    of_docker || (0..words.len()).any(|start| words.get(start..).is_some_and(is_link))
}

pub(super) fn variable_of_setting(path: &str) -> String {
    format!("TURNKEEP_{}", path.replace('.', "_").to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_say_where_a_service_is_are_passed_over() {
        let links = [
            ("TURNKEEP_SERVICE_HOST", "10.0.0.7"),
            ("TURNKEEP_SERVICE_PORT", "50051"),
            ("TURNKEEP_SERVICE_PORT_GRPC", "50051"),
            ("TURNKEEP_SERVICE_PORT_HTTP_METRICS", "9464"),
            ("TURNKEEP_PORT", "tcp://10.0.0.7:50051"),
            ("TURNKEEP_PORT_50051_TCP", "tcp://10.0.0.7:50051"),
            ("TURNKEEP_PORT_50051_TCP_PROTO", "tcp"),
            ("TURNKEEP_PORT_50051_TCP_PORT", "50051"),
            ("TURNKEEP_PORT_50051_TCP_ADDR", "10.0.0.7"),
            ("TURNKEEP_PORT_53_UDP_ADDR", "10.0.0.7"),
            ("TURNKEEP_GRPC_HEADLESS_SERVICE_HOST", "10.0.0.7"),
            ("TURNKEEP_GRPC_HEADLESS_PORT", "tcp://10.0.0.7:50051"),
            ("TURNKEEP_NAME", "/worker/turnkeep"),
            ("TURNKEEP_ENV_PATH", "/bin"),
        ];
        for (name, value) in links {
            assert_eq!(setting_of_variable(name, value).unwrap(), None, "{name}");
        }
        let others = [
            ("TURNKEEP_PORT", "50051"),
            ("TURNKEEP_SERVER_PORT", "50051"),
            ("TURNKEEP_PORT_X_TCP", "tcp://10.0.0.7:50051"),
            ("TURNKEEP_PORT_50051", "tcp://10.0.0.7:50051"),
            ("TURNKEEP_PORT_50051_TCP_NAME", "x"),
            ("TURNKEEP_SERVICE", "x"),
            ("TURNKEEP_SERVICE_ADDR", "x"),
            ("TURNKEEP_NAME", "x"),
            ("TURNKEEP_", "x"),
        ];
        for (name, value) in others {
            let error = setting_of_variable(name, value).unwrap_err().to_string();
            assert_eq!(error, format!("{name} is not a setting"));
        }
    }

    #[test]
    fn thresholds_of_compaction_that_are_out_of_order_are_refused() {
        let cases = [
            (
                &["snip_percent=61"][..],
                Some("prepare_percent: must be at least compaction.snip_percent, which is 61"),
            ),
            (
                &["prepare_percent=71"],
                Some("summarize_percent: must be at least compaction.prepare_percent, which is 71"),
            ),
            (
                &["collapse_percent=69"],
                Some("collapse_percent: must be at least compaction.summarize_percent, which is 70"),
            ),
            (
                &["target_percent=71"],
                Some("summarize_percent: must be at least compaction.target_percent, which is 71"),
            ),
            (&["collapse_percent=101"], Some("collapse_percent: must be 0 to 100")),
            (&["floor_percent=101"], Some("floor_percent: must be 0 to 100")),
            (
                &["slot_tokens_max=1999"],
                Some("slot_tokens_max: must be at least compaction.slot_tokens_min, which is 2000"),
            ),
            (&["snip_over_characters=1499"], Some("snip_over_characters: must be at least 1500")),
            (&["pins_percent=26"], Some("pins_percent: must be 0 to 25")),
            (&["ledger_percent=51"], Some("ledger_percent: must be 0 to 50")),
            (
                &["target_percent=15"],
                Some(
                    "target_percent: must be more than what compaction.pins_percent and slot_percent allow, 15",
                ),
            ),
            (
                &["target_percent=38", "pins_percent=25", "slot_percent=100"],
                Some(
                    "target_percent: must be more than what compaction.pins_percent and slot_percent allow, 38",
                ),
            ),
            (&["prompt= "], Some("prompt: is empty")),
            (&["prompt=a", "prompt_file=b"], Some("prompt_file: and compaction.prompt are both given")),
            (&["target_percent=39", "pins_percent=25", "slot_percent=100", "ledger_percent=50"], None),
            (&["target_percent=1", "pins_percent=0", "slot_percent=0", "ledger_percent=0"], None),
            (&["snip_percent=70", "prepare_percent=70", "target_percent=70"], None),
            (&["collapse_percent=100", "snip_percent=0", "target_percent=16", "slot_tokens_max=2000"], None),
        ];
        for (flags, problem) in cases {
            let flags: Vec<_> = flags.iter().map(|flag| format!("compaction.{flag}")).collect();
            let loaded = super::super::Settings::load(None, [], &flags);
            let told = loaded.err().map(|error| error.to_string());
            assert_eq!(told, problem.map(|problem| format!("compaction.{problem}")));
        }
    }
}
