//! Strip rules: which records of known logs are not kept.

use std::collections::BTreeMap;

/// A condition on a record: these of its members are these strings. A name with
/// dots, such as `payload.type`, goes into objects.
pub type Pattern = BTreeMap<String, String>;

/// Named sets of patterns; a record that matches one of a set's patterns is
/// stripped.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct StripRules(BTreeMap<String, Vec<Pattern>>);

/// Records of Claude Code's log that are for its screen, its undo or its
/// telemetry only.
const CLAUDE_CODE: &[&[(&str, &str)]] = &[
    &[("type", "progress")],
    &[("type", "file-history-snapshot")],
    &[("type", "file-history-delta")],
    &[("type", "queue-operation")],
    &[("type", "last-prompt")],
    &[("type", "mode")],
    &[("type", "permission-mode")],
    &[("type", "bridge-session")],
    &[("type", "atis-latch")],
    &[("type", "system"), ("subtype", "bridge_status")],
    &[("type", "system"), ("subtype", "stop_hook_summary")],
    &[("type", "system"), ("subtype", "turn_duration")],
    &[("type", "system"), ("subtype", "away_summary")],
    &[("type", "system"), ("subtype", "informational")],
    &[("type", "system"), ("subtype", "local_command")],
    &[("type", "system"), ("subtype", "api_error")],
    &[("type", "attachment"), ("attachment.type", "hook_success")],
    &[("type", "attachment"), ("attachment.type", "hook_cancelled")],
    &[("type", "attachment"), ("attachment.type", "hook_non_blocking_error")],
    &[("type", "attachment"), ("attachment.type", "hook_system_message")],
    &[("type", "attachment"), ("attachment.type", "async_hook_response")],
    &[("type", "attachment"), ("attachment.type", "command_permissions")],
];

/// Records of Codex rollouts that repeat others for its screen.
const CODEX_ROLLOUT: &[&[(&str, &str)]] = &[
    &[("type", "world_state")],
    &[("type", "event_msg"), ("payload.type", "context_compacted")],
    &[("type", "event_msg"), ("payload.type", "user_message")],
    &[("type", "event_msg"), ("payload.type", "agent_message")],
    &[("type", "event_msg"), ("payload.type", "agent_reasoning")],
    &[("type", "event_msg"), ("payload.type", "token_count")],
    &[("type", "event_msg"), ("payload.type", "exec_command_end")],
    &[("type", "event_msg"), ("payload.type", "patch_apply_end")],
    &[("type", "event_msg"), ("payload.type", "mcp_tool_call_end")],
    &[("type", "event_msg"), ("payload.type", "web_search_end")],
    &[("type", "event_msg"), ("payload.type", "dynamic_tool_call_request")],
    &[("type", "event_msg"), ("payload.type", "dynamic_tool_call_response")],
];

impl StripRules {
    /// The sets that the service brings: `claude-code` and `codex-rollout`.
    pub fn built_in() -> Self {
        let set = |patterns: &[&[(&str, &str)]]| {
            let pattern = |members: &&[(&str, &str)]| {
                members.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
            };
            patterns.iter().map(pattern).collect()
        };
        Self(BTreeMap::from([
            ("claude-code".to_owned(), set(CLAUDE_CODE)),
            ("codex-rollout".to_owned(), set(CODEX_ROLLOUT)),
        ]))
    }

    /// These sets and those of `others`, which win where names are the same.
    #[must_use]
    pub fn with(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// Whether there is a set of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The first of the named sets that strips a record, which must be a JSON
    /// object.
    pub fn matching<'a>(&self, names: &'a [String], record: &[u8]) -> Option<&'a str> {
        if names.is_empty() {
            return None;
        }
        let members = Members::read(record)?;
        names.iter().map(String::as_str).find(|name| {
            let patterns = self.0.get(*name).map(Vec::as_slice).unwrap_or_default();
            patterns.iter().any(|pattern| {
                !pattern.is_empty() && pattern.iter().all(|(name, value)| members.is(name, value))
            })
        })
    }
}

/// The members of an object, unparsed.
struct Members<'a>(BTreeMap<std::borrow::Cow<'a, str>, &'a serde_json::value::RawValue>);

impl<'a> Members<'a> {
    fn read(object: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(object).ok().map(Self)
    }

    fn is(&self, name: &str, expected: &str) -> bool {
        let (first, rest) = name.split_once('.').map_or((name, None), |(first, rest)| (first, Some(rest)));
        let Some(value) = self.0.get(first) else { return false };
        match rest {
            None => serde_json::from_str::<String>(value.get()).is_ok_and(|value| value == expected),
            Some(rest) => {
                Members::read(value.get().as_bytes()).is_some_and(|members| members.is(rest, expected))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_stripped_by_the_first_set_that_matches_all_of_a_pattern() {
        let rules = StripRules::built_in();
        let both = ["codex-rollout".to_owned(), "claude-code".to_owned()];
        let table: [(&str, Option<&str>); 6] = [
            (r#"{"type":"progress","data":{}}"#, Some("claude-code")),
            (r#"{"type":"system","subtype":"turn_duration"}"#, Some("claude-code")),
            (r#"{"type":"system","subtype":"compact_boundary"}"#, None),
            (r#"{"type":"event_msg","payload":{"type":"token_count"}}"#, Some("codex-rollout")),
            (r#"{"type":"event_msg","payload":{"type":"task_started"}}"#, None),
            (r#"{"type":"event_msg","payload":7}"#, None),
        ];
        for (record, set) in table {
            assert_eq!(rules.matching(&both, record.as_bytes()), set, "{record}");
        }
        assert_eq!(rules.matching(&[], br#"{"type":"progress"}"#), None);
        assert_eq!(rules.matching(&["no-such-set".to_owned()], br#"{"type":"progress"}"#), None);
    }

    #[test]
    fn an_operators_set_replaces_a_built_in_of_the_same_name() {
        let pattern = Pattern::from([("kind".to_owned(), "noise".to_owned())]);
        let own = StripRules(BTreeMap::from([("claude-code".to_owned(), vec![pattern])]));
        let rules = StripRules::built_in().with(own);
        let names = ["claude-code".to_owned()];
        assert_eq!(rules.matching(&names, br#"{"kind":"noise"}"#), Some("claude-code"));
        assert_eq!(rules.matching(&names, br#"{"type":"progress"}"#), None);
    }
}
