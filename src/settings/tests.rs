use super::variables::variable_of_setting;
use super::*;

fn load(text: &str, variables: &[(&str, &str)], flags: &[&str]) -> Result<Settings, SettingsError> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("turnkeep.toml");
    std::fs::write(&file, text).unwrap();
    let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let flags: Vec<_> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    Settings::load(Some(&file), variables, &flags)
}

#[test]
fn flags_win_over_variables_and_variables_over_the_file() {
    let text = "[server]\nlisten = \"127.0.0.1:1\"\nhttp_listen = \"127.0.0.1:2\"\nreflection = false\n";
    let variables =
        [("TURNKEEP_SERVER_LISTEN", "127.0.0.1:3"), ("TURNKEEP_SERVER_HTTP_LISTEN", "127.0.0.1:4")];
    let settings = load(text, &variables, &["server.listen=127.0.0.1:5"]).unwrap();
    assert_eq!(settings.server.listen.port(), 5);
    assert_eq!(settings.server.http_listen.port(), 4);
    assert!(!settings.server.reflection);
    assert_eq!(settings.server.drain_grace_seconds, 25);
}

#[test]
fn an_unknown_name_is_an_error_that_names_it() {
    let cases = [
        ("[server]\nlissen = \"x\"", &[][..], &[][..], "lissen"),
        ("[srv]", &[], &[], "srv"),
        ("", &[("TURNKEEP_SERVER_LISSEN", "x")][..], &[], "TURNKEEP_SERVER_LISSEN"),
        ("", &[], &["server.lissen=x"][..], "server.lissen"),
        ("[profiles.a]\nwindow = 3", &[], &[], "window"),
    ];
    for (text, variables, flags, name) in cases {
        let error = load(text, variables, flags).unwrap_err().to_string();
        assert!(error.contains(name), "{error} does not name {name}");
    }
    assert!(load("", &[("TURNKEEP_TEST_POSTGRES", "x"), ("PATH", "x")], &[]).is_ok());
}

#[test]
fn a_level_that_is_none_is_refused() {
    for level in ["info", "WARN", "off", "info,turnkeep::engine=debug", "turnkeep::rpc", "[span]=debug"] {
        load("", &[("TURNKEEP_LOG_LEVEL", level)], &[]).unwrap();
    }
    for level in ["loud", "", "info,verbos", "turnkeep"] {
        let error = load("", &[("TURNKEEP_LOG_LEVEL", level)], &[]).unwrap_err().to_string();
        assert!(error.starts_with("log.level: "), "{level}: {error}");
    }
}

#[test]
fn secrets_are_not_printed() {
    let url = "postgres://user:hunter2@localhost/db";
    let settings = load("", &[("TURNKEEP_STORE_METADATA", url)], &[]).unwrap();
    assert!(matches!(settings.store.metadata, Metadata::Postgres(_)));
    assert!(!format!("{settings:?}").contains("hunter2"));
    let error = load("[store]\nmetadata = \"mysql://user:hunter2@localhost/db\"", &[], &[]).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
}

#[test]
fn a_prompt_is_read_from_its_file_and_one_that_cannot_be_is_told_by_setting_and_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("prompt.md");
    let name = path.display().to_string();
    let settings = load("", &[("TURNKEEP_COMPACTION_PROMPT_FILE", &name)], &[]).unwrap();
    let error = || settings.prompt().unwrap_err().to_string();
    assert!(error().starts_with(&format!("compaction.prompt_file: cannot read {name}: ")), "{}", error());
    let largest = limits::PROMPT_BYTES_MAX;
    for (content, problem) in [
        (b" \n".to_vec(), "is empty".to_owned()),
        // The last character is cut in two by the bound.
        ([vec![b'a'; largest], "ä".into()].concat(), format!("has more than the {largest} bytes allowed")),
        (b"a\xff".to_vec(), "is not UTF-8".to_owned()),
    ] {
        std::fs::write(&path, content).unwrap();
        assert_eq!(error(), format!("compaction.prompt_file: {name} {problem}"));
    }
    let prompt = "Sum it up in {{target_tokens}} tokens.\n".to_owned();
    std::fs::write(&path, &prompt).unwrap();
    assert_eq!(settings.prompt().unwrap(), Some(prompt));
    assert_eq!(load("", &[], &["compaction.prompt=b"]).unwrap().prompt().unwrap().as_deref(), Some("b"));
    assert_eq!(load("", &[], &[]).unwrap().prompt().unwrap(), None);
    // The one that is built in is such a file.
    std::fs::write(&path, include_str!("../summary/prompt.md")).unwrap();
    assert_eq!(settings.prompt().unwrap().as_deref(), Some(crate::summary::prompt::PROMPT));
}

#[test]
fn every_scalar_can_be_given_and_wrong_values_name_their_origin() {
    for (path, kind) in SCALARS {
        let wrong = load("", &[(&variable_of_setting(path), "?")], &[]);
        match kind {
            Kind::Integer | Kind::Boolean => {
                let error = wrong.unwrap_err().to_string();
                assert!(error.contains(&variable_of_setting(path)), "{error}");
            }
            Kind::Text => drop(wrong),
        }
    }
    let settings = load("", &[("TURNKEEP_STORE_POOLS_WRITE", "3")], &[]).unwrap();
    assert_eq!(settings.store.pools.write, 3);
}

#[test]
fn the_example_file_shows_every_setting_with_its_default() {
    let text = include_str!("../../deploy/turnkeep.toml");
    let mut example = load(text, &[], &[]).unwrap();
    assert_eq!(example.profiles.keys().collect::<Vec<_>>(), ["example"]);
    example.profiles.clear();
    assert_eq!(format!("{example:#?}"), format!("{:#?}", Settings::default()));
    for (path, _) in SCALARS {
        let (_, name) = path.rsplit_once('.').unwrap();
        let is_shown =
            text.lines().any(|line| line.trim_start_matches("# ").starts_with(&format!("{name} = ")));
        assert!(is_shown, "{path} is not shown");
    }
}

#[test]
fn a_profile_without_a_window_is_refused() {
    let error = load("[profiles.a]\nmodel = \"m\"", &[], &[]).unwrap_err().to_string();
    assert!(error.contains("profiles.a.context_window_tokens"), "{error}");
}

#[test]
fn a_profile_with_limits_that_no_session_could_have_is_refused() {
    let load =
        |limits: &str| load(&format!("[profiles.a]\ncontext_window_tokens = 1000\n{limits}"), &[], &[]);
    for (limits, problem) in [
        ("tool_result_limit = { length = 0 }", "tool_result_limit.length: is 0"),
        ("tool_result_limit = { length = 500001 }", "tool_result_limit.length: is 500001"),
        ("tool_result_limit = { length = 9, reserve = 9 }", "tool_result_limit.reserve: is 9"),
        ("media_limits = { image_bytes = 4095 }", "media_limits.image_bytes: is 4095"),
        ("media_limits = { document_bytes = 1 }", "media_limits.document_bytes: is 1"),
    ] {
        let error = load(limits).unwrap_err().to_string();
        assert!(error.starts_with(&format!("profiles.a.{problem}; must be ")), "{error}");
    }
    load("tool_result_limit = { length = 500000, reserve = 499999 }").unwrap();
    load("media_limits = { image_bytes = 4096, document_bytes = 0, image_pixels = 1 }").unwrap();
}
