//! `turnkeep models`.

use super::command;

#[test]
fn models_are_listed_with_what_is_known_of_them() {
    let all = command::run(&["models", "--json"], &[]).json();
    assert!(all.len() > 500, "{}", all.len());
    let one = command::run(&["models", "--json", "anthropic/claude-opus-4.5"], &[]).json();
    let expected = serde_json::json!({
        "id": "claude-opus-4-5",
        "provider": "anthropic",
        "window": 200_000,
        "output": 64_000,
        "tokenizer": "estimate",
        "images": true,
        "documents": true,
        "prices": {"input": 5.0, "output": 25.0, "cache_read": 0.5, "cache_write": 6.25},
    });
    assert!(all.contains(&expected));
    assert_eq!(one, [expected]);

    let table = command::run(&["models", "claude-opus"], &[]).output();
    let mut lines = table.lines();
    assert!(lines.next().unwrap().starts_with("MODEL "), "{table}");
    assert!(lines.clone().count() > 5 && lines.all(|line| line.contains("claude-opus")), "{table}");
    let unknown = command::run(&["models", "unheard-of"], &[]).failure();
    assert!(unknown.starts_with("turnkeep: unheard-of is not in the catalogue"), "{unknown}");
}
