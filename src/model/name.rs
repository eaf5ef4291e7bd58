//! Ids and resource names.

use crate::limits::ID_CHARS_MAX;
use std::fmt;

/// Why a name was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    /// It is empty.
    #[error("must not be empty")]
    Empty,
    /// It is longer than `limit`.
    #[error("has {chars} characters; at most {limit} are allowed")]
    TooLong {
        /// Its length.
        chars: usize,
        /// The limit.
        limit: usize,
    },
    /// It holds a character that ids do not.
    #[error("holds {found:?}; only letters, digits and `. _ : -` are allowed")]
    Character {
        /// The first such character.
        found: char,
    },
    /// It does not begin with its collection.
    #[error("must have the form `{form}`")]
    Form {
        /// The form.
        form: &'static str,
    },
}

fn check_id(id: &str) -> Result<(), InvalidName> {
    if id.is_empty() {
        return Err(InvalidName::Empty);
    }
    if let Some(found) = id.chars().find(|c| !(c.is_ascii_alphanumeric() || "._:-".contains(*c))) {
        return Err(InvalidName::Character { found });
    }
    if id.len() > ID_CHARS_MAX {
        return Err(InvalidName::TooLong { chars: id.len(), limit: ID_CHARS_MAX });
    }
    Ok(())
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        #[serde(transparent)]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// The id, if it is one.
            pub fn parse(id: &str) -> Result<Self, InvalidName> {
                check_id(id)?;
                Ok(Self(id.into()))
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let id = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                Self::parse(&id).map_err(serde::de::Error::custom)
            }
        }
    };
}

id! {
    /// Owner of sessions: comes from the caller's credential.
    TenantId
}
id! {
    /// Last part of a session's resource name.
    SessionId
}
id! {
    /// A branch of the log; minted by the service.
    BranchId
}
id! {
    /// A tool output of a session; minted by the service.
    OutputId
}
id! {
    /// The caller's key for a request.
    RequestId
}

impl TenantId {
    /// The tenant of a service without authentication.
    #[expect(clippy::missing_panics_doc, clippy::expect_used, reason = "the literal is an id")]
    pub fn default_tenant() -> Self {
        Self::parse("default").expect("is an id")
    }
}

impl SessionId {
    const FORM: &str = "sessions/{session}";

    /// The id in a resource name `sessions/{session}`.
    pub fn from_resource_name(name: &str) -> Result<Self, InvalidName> {
        let id = name.strip_prefix("sessions/").ok_or(InvalidName::Form { form: Self::FORM })?;
        Self::parse(id)
    }

    /// The resource name, `sessions/{session}`.
    pub fn resource_name(&self) -> String {
        format!("sessions/{self}")
    }
}

/// A writer generation: numbers the processes that may name blobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct GenerationId(pub i64);

impl fmt::Display for GenerationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_keep_to_their_characters_and_length() {
        assert!(SessionId::parse("a.b_c:d-E9").is_ok());
        assert!(SessionId::parse(&"x".repeat(ID_CHARS_MAX)).is_ok());
        assert_eq!(SessionId::parse(""), Err(InvalidName::Empty));
        assert_eq!(
            SessionId::parse(&"x".repeat(ID_CHARS_MAX + 1)),
            Err(InvalidName::TooLong { chars: ID_CHARS_MAX + 1, limit: ID_CHARS_MAX })
        );
        for found in ['/', ' ', '\0', 'é', '\n'] {
            assert_eq!(SessionId::parse(&format!("a{found}")), Err(InvalidName::Character { found }));
        }
    }

    #[test]
    fn resource_names_round_trip() {
        let id = SessionId::parse("s1").unwrap();
        assert_eq!(SessionId::from_resource_name(&id.resource_name()), Ok(id));
        assert_eq!(SessionId::from_resource_name("s1"), Err(InvalidName::Form { form: SessionId::FORM }));
    }
}
