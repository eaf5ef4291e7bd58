//! The models that summaries are made with.

use super::SettingsError;
use crate::engine::Patience;
use crate::limits::{SUMMARIZER_PAUSE_SECONDS_MAX, SUMMARIZER_SOURCE_TOKENS, SUMMARIZER_SOURCE_TOKENS_MIN};
use crate::provider::{Api, InvalidOptions, LlmClient, LlmOptions, Summarizer as Models};
use secrecy::SecretString;
use serde::{Deserialize, Deserializer};
use std::path::PathBuf;
use std::time::Duration;

/// The models that summaries are made with; none without an `api`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Summarizer {
    /// The API that they are behind.
    pub api: Option<Api>,
    /// URL of the API, if it is not the vendor's own.
    pub endpoint: Option<String>,
    /// Name of the model for most.
    pub model: String,
    /// Name of the model for long inputs; `model` if empty.
    pub capable_model: String,
    /// Tokens of input over which that is taken.
    pub capable_over_tokens: u64,
    /// Most tokens of the input, as they are counted here, and of what a worker's own
    /// model is given, if it names no other; of more, both ends.
    pub source_tokens: u64,
    /// The key.
    #[serde(deserialize_with = "secret")]
    pub key: Option<SecretString>,
    /// A file that holds the key, and nothing else but space around it.
    pub key_file: Option<PathBuf>,
    /// The header that has the key and nothing else, if it is not the API's own.
    pub key_header: Option<String>,
    /// Seconds that a connection may take.
    pub connect_seconds: u64,
    /// Seconds that one attempt may take.
    pub attempt_seconds: u64,
    /// Seconds that a session gets no summary after one failed.
    pub cooldown_seconds: u64,
    /// Failures in a row after which this process asks for none at all,
    pub breaker_failures: u32,
    /// for so many seconds.
    pub breaker_seconds: u64,
}

impl Default for Summarizer {
    fn default() -> Self {
        let patience = Patience::default();
        Self {
            api: None,
            endpoint: None,
            model: String::new(),
            capable_model: String::new(),
            capable_over_tokens: 60_000,
            source_tokens: SUMMARIZER_SOURCE_TOKENS,
            key: None,
            key_file: None,
            key_header: None,
            connect_seconds: 5,
            attempt_seconds: 120,
            cooldown_seconds: patience.cooldown.as_secs(),
            breaker_failures: patience.failures,
            breaker_seconds: patience.pause.as_secs(),
        }
    }
}

impl Summarizer {
    /// Checks what the types do not.
    pub(super) fn check(&self) -> Result<(), SettingsError> {
        let is_set = self.endpoint.is_some()
            || !self.model.is_empty()
            || !self.capable_model.is_empty()
            || self.key.is_some()
            || self.key_file.is_some()
            || self.key_header.is_some();
        let pauses = [("cooldown_seconds", self.cooldown_seconds), ("breaker_seconds", self.breaker_seconds)];
        if let Some((name, _)) = pauses.iter().find(|(_, seconds)| *seconds > SUMMARIZER_PAUSE_SECONDS_MAX) {
            return Err(invalid(name, &format!("must be at most {SUMMARIZER_PAUSE_SECONDS_MAX}")));
        }
        if self.breaker_failures == 0 {
            return Err(invalid("breaker_failures", "must be at least 1"));
        }
        match self.api {
            None if is_set => Err(invalid("api", "is needed with the other settings of the summarizer")),
            Some(_) if self.model.is_empty() => Err(invalid("model", "is needed with summarizer.api")),
            _ if self.source_tokens < SUMMARIZER_SOURCE_TOKENS_MIN => {
                let problem = format!("must be at least {SUMMARIZER_SOURCE_TOKENS_MIN}");
                Err(invalid("source_tokens", &problem))
            }
            _ if self.key.is_some() && self.key_file.is_some() => {
                Err(invalid("key_file", "and summarizer.key are both given"))
            }
            _ => Ok(()),
        }
    }

    /// How long the models are left alone after failures.
    pub(super) fn patience(&self) -> Patience {
        Patience {
            cooldown: Duration::from_secs(self.cooldown_seconds),
            failures: self.breaker_failures,
            pause: Duration::from_secs(self.breaker_seconds),
        }
    }

    /// Clients for the models, if there are any. The key's file is read now.
    pub fn open(&self) -> Result<Option<Models>, SettingsError> {
        let Some(api) = self.api else { return Ok(None) };
        let key = match &self.key_file {
            None => self.key.clone(),
            Some(file) => {
                let key = std::fs::read_to_string(file)
                    .map_err(|source| SettingsError::File { file: file.clone(), source })?;
                Some(key.trim().into())
            }
        };
        let client = |model: &str| {
            let endpoint = self.endpoint.clone().unwrap_or_else(|| api.default_endpoint().to_owned());
            let options = LlmOptions {
                api,
                endpoint,
                model: model.to_owned(),
                key: key.clone(),
                key_header: self.key_header.clone(),
                connect_timeout: Duration::from_secs(self.connect_seconds.max(1)),
                attempt_timeout: Duration::from_secs(self.attempt_seconds.max(1)),
            };
            LlmClient::new(options).map_err(|error| {
                let setting = match error {
                    InvalidOptions::Key if self.key_file.is_some() => "key_file",
                    InvalidOptions::Key => "key",
                    InvalidOptions::KeyHeader => "key_header",
                    _ => "endpoint",
                };
                invalid(setting, &error.to_string())
            })
        };
        let capable = (!self.capable_model.is_empty()).then(|| client(&self.capable_model)).transpose()?;
        let capable_over_tokens = self.capable_over_tokens;
        Ok(Some(Models { cheap: client(&self.model)?, capable, capable_over_tokens }))
    }
}

fn secret<'de, D: Deserializer<'de>>(value: D) -> Result<Option<SecretString>, D::Error> {
    Ok(Option::<String>::deserialize(value)?.map(Into::into))
}

fn invalid(setting: &str, problem: &str) -> SettingsError {
    SettingsError::Invalid { origin: format!("summarizer.{setting}"), problem: problem.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::Settings;
    use super::*;

    fn load(variables: &[(&str, &str)]) -> Result<Summarizer, String> {
        let variable =
            |(name, value): &(&str, &str)| (format!("TURNKEEP_SUMMARIZER_{name}"), (*value).to_owned());
        let settings = Settings::load(None, variables.iter().map(variable), &[]);
        settings.map(|settings| settings.summarizer).map_err(|error| error.to_string())
    }

    #[test]
    fn a_summarizer_has_an_api_a_model_and_one_key() {
        let table: [(&[(&str, &str)], &str); 13] = [
            (&[("KEY_HEADER", "api-key")], "summarizer.api: is needed"),
            (&[("MODEL", "m")], "summarizer.api: is needed"),
            (&[("KEY", "hunter2")], "summarizer.api: is needed"),
            (&[("API", "openai")], "summarizer.model: is needed"),
            (
                &[("API", "openai"), ("MODEL", "m"), ("KEY", "hunter2"), ("KEY_FILE", "f")],
                "summarizer.key_file: and",
            ),
            (
                &[("API", "openai"), ("MODEL", "m"), ("SOURCE_TOKENS", "399")],
                "summarizer.source_tokens: must be at least 400",
            ),
            (&[("SOURCE_TOKENS", "0")], "summarizer.source_tokens: must be at least 400"),
            (&[("COOLDOWN_SECONDS", "86401")], "summarizer.cooldown_seconds: must be at most 86400"),
            (&[("BREAKER_SECONDS", "86401")], "summarizer.breaker_seconds: must be at most 86400"),
            (&[("BREAKER_FAILURES", "0")], "summarizer.breaker_failures: must be at least 1"),
            (&[("BREAKER_FAILURES", "-1")], "TURNKEEP_SUMMARIZER_BREAKER_FAILURES: "),
            (&[("API", "gemini")], "TURNKEEP_SUMMARIZER_API: unknown variant `gemini`"),
            (&[("APIS", "x")], "TURNKEEP_SUMMARIZER_APIS is not a setting"),
        ];
        for (variables, said) in table {
            let error = load(variables).unwrap_err();
            assert!(error.starts_with(said) && !error.contains("hunter2"), "{variables:?}: {error}");
        }
        assert!(load(&[]).unwrap().open().unwrap().is_none());
    }

    #[test]
    fn a_summarizer_is_opened_with_its_key_and_never_shows_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("key");
        let path = file.display().to_string();
        let base = [("API", "openai"), ("MODEL", "a"), ("ENDPOINT", "http://127.0.0.1:1/v1")];
        let with_key = load(&[&base[..], &[("KEY", "hunter2"), ("CAPABLE_MODEL", "b")]].concat()).unwrap();
        let models = with_key.open().unwrap().unwrap();
        assert_eq!([models.model_for(60_000).model(), models.model_for(60_001).model()], ["a", "b"]);
        let with_file = load(&[&base[..], &[("KEY_FILE", &path)]].concat()).unwrap();
        assert!(with_file.open().unwrap_err().to_string().starts_with(&format!("cannot read {path}")));
        std::fs::write(&file, "hunter2\n").unwrap();
        let opened = with_file.open().unwrap().unwrap();
        assert!(opened.capable.is_none());
        let shown = format!("{with_key:?} {models:?} {with_file:?} {opened:?}");
        assert!(!shown.contains("hunter2"), "{shown}");
        std::fs::write(&file, "a\nhunter2").unwrap();
        let error = with_file.open().unwrap_err().to_string();
        assert!(error.starts_with("summarizer.key_file: ") && !error.contains("hunter2"), "{error}");
        let elsewhere = load(&[("API", "openai"), ("MODEL", "a"), ("ENDPOINT", "h/v1")]).unwrap();
        assert!(elsewhere.open().unwrap_err().to_string().starts_with("summarizer.endpoint: "));
        for wrong in ["", "api key", "Content-Type", "host"] {
            let header = load(&[&base[..], &[("KEY_HEADER", wrong)]].concat()).unwrap();
            assert!(header.open().unwrap_err().to_string().starts_with("summarizer.key_header: "), "{wrong}");
        }
    }
}
