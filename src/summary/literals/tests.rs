use super::*;
use crate::model::WireFormat;
use proptest::prelude::*;

fn literals(text: &str) -> Vec<(LiteralKind, &str)> {
    let mut found = Vec::new();
    literals_of(text, &mut |kind, literal| found.push((kind, literal)));
    found
}

#[test]
#[rustfmt::skip]
fn literals_are_found_and_what_only_looks_like_one_is_not() {
    use LiteralKind::{ErrorCode, Hash, Id, Number, Path, Quoted, Symbol, Url};
    let cases: &[(&str, &[(LiteralKind, &str)])] = &[
        ("see src/main.rs:12:5.", &[(Path, "src/main.rs:12:5")]),
        ("edit go.mod and Makefile", &[(Path, "go.mod"), (Path, "Makefile")]),
        ("in ./run and ../a/b", &[(Path, "./run"), (Path, "../a/b")]),
        ("under migrations/ only", &[(Path, "migrations/")]),
        ("read /etc/passwd, ~/x/y", &[(Path, "/etc/passwd"), (Path, "~/x/y")]),
        (r"C:\Users\me\a.txt here", &[(Path, r"C:\Users\me\a.txt")]),
        ("修改go.mod文件和docs/说明.md。", &[(Path, "go.mod"), (Path, "docs/说明.md")]),
        ("docs/Übersicht.md und grün.txt", &[(Path, "docs/Übersicht.md"), (Path, "grün.txt")]),
        ("README.md#L25 and .gitignore", &[(Path, "README.md#L25"), (Path, ".gitignore")]),
        ("@types/node/index.d.ts", &[(Path, "@types/node/index.d.ts")]),
        ("packages/core/src/lib", &[(Path, "packages/core/src/lib")]),
        ("and/or, yes/no, I/O, 3/4, n/a, TCP/IP", &[]),
        ("text/html and application/json; 2024/01/02", &[]),
        ("console.log, e.g. this, v1.2.3", &[]),
        ("x.await.unwrap(); a.b.c", &[(Symbol, "x.await.unwrap")]),
        ("// comment", &[]),
        ("at https://a.io/x?y=1&z=(2). Then", &[(Url, "https://a.io/x?y=1&z=(2)")]),
        ("[l](https://a.io/x)", &[(Url, "https://a.io/x")]),
        ("打开https://a.io/x。", &[(Url, "https://a.io/x")]),
        ("git+ssh://h/p.git", &[(Url, "git+ssh://h/p.git")]),
        ("commit 8b4d61d now", &[(Hash, "8b4d61d")]),
        ("id 6ef2299e-a67f-432b-aa80-3d2fb4d28999", &[(Hash, "6ef2299e-a67f-432b-aa80-3d2fb4d28999")]),
        ("sha256:61dcdad16da5bb48", &[(Hash, "sha256:61dcdad16da5bb48")]),
        ("defaced, 1234567, deadbeef", &[]),
        ("fix ENT-258, #1234 and CVE-2024-12345", &[(Id, "ENT-258"), (Id, "#1234"), (Id, "CVE-2024-12345")]),
        ("CVE-2024-1234567890, CVE-2024-notes", &[(Id, "CVE-2024-1234567890")]),
        ("toolu_01AbCdEf9 and call_abc12345", &[(Id, "toolu_01AbCdEf9"), (Id, "call_abc12345")]),
        ("UTF-8, SHA-256, GPT-4", &[]),
        ("call foo_bar(1) or getUser()", &[(Symbol, "foo_bar"), (Symbol, "getUser")]),
        ("Foo::bar, std::env", &[(Symbol, "Foo::bar"), (Symbol, "std::env")]),
        ("the `config` and `a.b()` names", &[(Symbol, "config"), (Symbol, "a.b()")]),
        ("if (x) print(y) main()", &[(Symbol, "main")]),
        ("error E0382 and TS2345", &[(ErrorCode, "E0382"), (ErrorCode, "TS2345")]),
        ("ECONNREFUSED, ERR_MODULE_NOT_FOUND", &[(ErrorCode, "ECONNREFUSED"), (ErrorCode, "ERR_MODULE_NOT_FOUND")]),
        ("HTTP 404 with exit code 101", &[(ErrorCode, "HTTP 404"), (ErrorCode, "exit code 101")]),
        ("exited with code 0, status 200", &[]),
        ("ModuleNotFoundError: no", &[(ErrorCode, "ModuleNotFoundError")]),
        ("EVERY Error counts", &[]),
        ("took 217s, 1,234 lines, 16 KiB", &[(Number, "217s"), (Number, "1,234 lines"), (Number, "16 KiB")]),
        ("40% of $1,047 or 5€", &[(Number, "40%"), (Number, "$1,047"), (Number, "5€")]),
        ("等30秒", &[(Number, "30秒")]),
        ("12 apples, 3 of 4, v2", &[]),
        ("say \"hello world\" and «bonjour»", &[(Quoted, "hello world"), (Quoted, "bonjour")]),
        ("it's the dog's", &[]),
        ("run `cargo test --all`", &[(Quoted, "cargo test --all")]),
        ("open `src/a.rs`", &[(Path, "src/a.rs")]),
        ("```\nx\n```", &[]),
    ];
    for (text, expected) in cases {
        assert_eq!(literals(text), *expected, "{text}");
    }
}

#[test]
fn texts_made_to_take_long_do_not() {
    for piece in [
        "$1",
        "1s/",
        "`",
        "«",
        "'a ",
        "\"",
        "a.",
        "a://",
        "exit code ",
        "<a>",
        "</a>",
        "[",
        "等",
        "e.g. ",
        "~~~\n",
        "- ",
    ] {
        let text = piece.repeat(300_000 / piece.len());
        literals_of(&text, &mut |_, _| {});
        for sentence in sentences(&text) {
            is_constraint(sentence);
        }
        let payload = serde_json::json!({"role": "user", "content": text}).to_string();
        find(&[entry(1, &payload)]);
    }
}

#[test]
fn elements_that_are_never_closed_do_not_take_long() {
    // Of which each would be looked for to the end.
    assert_eq!(sentences(&"</".repeat(4_000_000)), Vec::<&str>::new());
}

/// Whether the user's sentence is a constraint.
#[rustfmt::skip]
const CONSTRAINTS: &[(bool, &str)] = &[
    (true, "Do not touch migrations/."),
    (true, "don't ever use unwrap in library code"),
    (true, "Please don’t commit yet"),
    (true, "You must not change the public API."),
    (true, "Never push to main."),
    (true, "We should never log secrets."),
    (true, "Always run `npm test` after a change."),
    (true, "Only use the standard library."),
    (true, "fix it, but only edit src/daemon.rs"),
    (true, "Refactor it without changing the public interface."),
    (true, "Could you rename it without breaking the tests?"),
    (true, "can we only do the git sync video"),
    (true, "If tests fail, do not commit."),
    (true, "All responses must be JSON."),
    (true, "I don't want you to add dependencies"),
    (true, "leave the lockfile untouched"),
    (true, "DO NOT run any command that produces binary output!"),
    (true, "no new dependencies please"),
    (true, "do not use playwright"),
    (true, "Never remove the copyright"),
    (true, "under no circumstances may it block"),
    (true, "avoid adding comments to generated code"),
    (true, "Du darfst die Datenbank nicht ändern."),
    (true, "Bitte die Migrationen nicht anfassen."),
    (true, "Verwende nur Bibliotheken mit MIT-Lizenz."),
    (true, "Mach das, ohne die API zu ändern."),
    (true, "Auf keinen Fall nach main pushen!"),
    (true, "Ne modifie pas les migrations."),
    (true, "Ne jamais toucher au dossier vendor."),
    (true, "Utilise uniquement la bibliothèque standard."),
    (true, "Corrige le bug sans modifier les tests."),
    (true, "No toques la carpeta migrations."),
    (true, "Nunca subas secretos al repositorio."),
    (true, "Usa solo la biblioteca estándar."),
    (true, "Arréglalo sin romper la API."),
    (true, "Não mexa na pasta migrations."),
    (true, "Use apenas a biblioteca padrão."),
    (true, "Corrija sem alterar os testes."),
    (true, "不要修改数据库。"),
    (true, "請勿刪除這個檔案"),
    (true, "必须使用Go 1.23。"),
    (true, "别动配置文件，只改测试"),
    (true, "テストは変更しないでください。"),
    (true, "本番データには触らないこと。"),
    (true, "必ずテストを実行してください。"),
    (false, "never mind, we'll look at it later"),
    (false, "I don't know why it fails."),
    (false, "Don't worry about it."),
    (false, "you don't need to follow the demonstration"),
    (false, "why don't we use Postgres?"),
    (false, "Should we never push to main?"),
    (false, "we never push to main, right"),
    (false, "It never worked."),
    (false, "and it never fires again"),
    (false, "the loop retries, but never stops"),
    (false, "the build was slow and always failed"),
    (false, "commits don't get trailers"),
    (false, "the log says `must not be empty`"),
    (false, "the message \"do not touch\" is wrong"),
    (false, "It must be the flag."),
    (false, "there must be some way"),
    (false, "why this method does only work on unix"),
    (false, "It was pushed without a review."),
    (false, "That's the only way."),
    (false, "can you check what only one upgrade costs?"),
    (false, "Das kann ich nicht ändern."),
    (false, "Je ne sais pas."),
    (false, "No funciona."),
    (false, "Não funciona."),
    (false, "这个功能不能用了。"),
    (false, "要不要改成3.10？"),
    (false, "toolchain不用保留吧?"),
    (false, "動かないです。"),
    (false, "should we always fill in 100%?"),
];

#[test]
fn constraints_are_told_from_what_only_sounds_like_one() {
    let wrong: Vec<_> = CONSTRAINTS.iter().filter(|(is, text)| is_constraint(text) != *is).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Whether a sentence is a decision.
#[rustfmt::skip]
const DECISIONS: &[(bool, Speaker, &str)] = &[
    (true, Speaker::User, "Postgres, because of the licence."),
    (true, Speaker::User, "let's go with Option 1."),
    (true, Speaker::User, "We decided to drop Windows support."),
    (true, Speaker::User, "use ring because aws-lc does not build here"),
    (true, Speaker::User, "prefer `open` instead of `cat`"),
    (true, Speaker::Model, "I'll go with v0.52.0, the minimal fix."),
    (true, Speaker::Model, "I'll leave those alone since they're not in my diff."),
    (true, Speaker::Model, "We keep push on the existing path because it already gives control."),
    (true, Speaker::Model, "I chose a map because lookups dominate."),
    (true, Speaker::Model, "Decision: SQLite for tests."),
    (true, Speaker::Model, "I'll leave them uncommitted rather than fold unrelated work into this."),
    (false, Speaker::Model, "I'll use the compiler output rather than guessing."),
    (false, Speaker::Model, "I'll look for drift rather than just skimming the prose."),
    (true, Speaker::User, "Wir nehmen Postgres, weil die Lizenz passt."),
    (true, Speaker::User, "Wir haben uns für Rust entschieden."),
    (true, Speaker::User, "Nous avons décidé de garder Postgres."),
    (true, Speaker::User, "Hemos decidido usar Postgres."),
    (true, Speaker::User, "Decidimos usar Postgres."),
    (true, Speaker::User, "我们决定使用Postgres。"),
    (true, Speaker::User, "选择Postgres，因为许可证更宽松。"),
    (true, Speaker::User, "Postgresを使うことにしました。"),
    (false, Speaker::Model, "The test fails because the path is wrong."),
    (false, Speaker::Model, "If we go with Postgres, it works."),
    (false, Speaker::Model, "We could use Postgres because of the licence."),
    (false, Speaker::Model, "I'm using the workflow guidance because this hinges on it."),
    (false, Speaker::User, "Should we go with Postgres?"),
    (false, Speaker::User, "Defaulting to user installation because site-packages is not writeable"),
    (false, Speaker::User, "It broke because of the bump."),
    (false, Speaker::Model, "That decides which branches to consider."),
    (false, Speaker::Model, "postgres, because of the licence"),
];

#[test]
fn decisions_are_told_from_explanations() {
    let wrong: Vec<_> = DECISIONS.iter().filter(|(is, by, text)| is_decision(text, *by) != *is).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn entry(seq: u64, payload: &str) -> Said<'_> {
    Said::of(WireFormat::AnthropicMessages, Seq(seq), payload.as_bytes())
}

#[test]
fn statements_come_from_the_right_speaker_word_for_word() {
    let entries = [
        entry(
            1,
            r#"{"role":"user","content":"Build it.\n- Do not touch `db/`!\n<system-reminder>\nNever stop.\n</system-reminder>"}"#,
        ),
        entry(2, r#"{"role":"assistant","content":"Never mind. Do not touch x. We go with Rust."}"#),
        entry(
            3,
            r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"Never do this. E0382 at a/b.rs:3"}]}"#,
        ),
        entry(4, r#"{"role":"user","content":"Do not touch `db/`! See a/b.rs:3"}"#),
    ];
    let found = find(&entries);
    let statement = |text: &str, seq, by| Statement { text: text.to_owned(), seq: Seq(seq), by };
    assert_eq!(found.constraints, [statement("Do not touch `db/`!", 1, Speaker::User)]);
    assert_eq!(found.decisions, [statement("We go with Rust.", 2, Speaker::Model)]);
    let literal =
        |kind, text: &str, seq, by, times| Literal { kind, text: text.to_owned(), seq: Seq(seq), by, times };
    assert_eq!(
        found.literals,
        [
            literal(LiteralKind::Path, "db/", 1, Speaker::User, 2),
            literal(LiteralKind::ErrorCode, "E0382", 3, Speaker::Tool, 1),
            literal(LiteralKind::Path, "a/b.rs:3", 3, Speaker::User, 2),
        ]
    );
    assert_eq!(found.omitted, 0);
}

#[test]
fn what_tools_print_leaves_room_for_what_people_name() {
    let paths = |from: usize, count: usize| {
        (from..from + count).map(|i| format!("src/f{i}.rs")).collect::<Vec<_>>().join(" ")
    };
    let result = format!(
        r#"{{"role":"user","content":[{{"type":"tool_result","tool_use_id":"a","content":"{}"}}]}}"#,
        paths(0, LITERALS_MAX + 1)
    );
    let text = format!(r#"{{"role":"user","content":"{}"}}"#, paths(LITERALS_MAX + 1, LITERALS_MAX));
    let found = find(&[entry(1, &result), entry(2, &text)]);
    let of = |by| found.literals.iter().filter(|literal| literal.by == by).count();
    assert_eq!((of(Speaker::Tool), of(Speaker::User)), (TOOL_LITERALS_MAX, LITERALS_MAX - TOOL_LITERALS_MAX));
    assert_eq!(
        found.omitted,
        (LITERALS_MAX + 1 + TOOL_LITERALS_MAX - LITERALS_MAX + LITERALS_MAX - TOOL_LITERALS_MAX) as u64
    );
}

#[test]
fn of_more_statements_than_are_looked_after_the_newest_are_found() {
    let rules = 0..STATEMENTS_MAX + 3;
    let entries: Vec<_> = rules
        .map(|rule| format!(r#"{{"role":"user","content":"Never touch the file src/f{rule}.rs, please."}}"#))
        .collect();
    let said: Vec<_> = (1..).zip(&entries).map(|(seq, payload)| entry(seq, payload)).collect();
    let found = find(&said);
    let seqs: Vec<_> = found.constraints.iter().map(|found| found.seq.0).collect();
    assert_eq!(seqs, (4..=STATEMENTS_MAX as u64 + 3).collect::<Vec<_>>());
    assert_eq!(found.omitted, 3);
}

proptest! {
    #[test]
    fn literals_and_sentences_are_pieces_of_any_text(text in "(\\PC|[ \n`\"'./:#0-9a-f_(<>-]){0,200}") {
        literals_of(&text, &mut |_, literal| {
            assert!(!literal.is_empty() && text.contains(literal));
        });
        let mut rest = text.as_str();
        for sentence in sentences(&text) {
            let at = rest.find(sentence);
            prop_assert!(at.is_some(), "in order: {sentence}");
            rest = rest.split_at(at.unwrap() + sentence.len()).1;
            let _ = (is_constraint(sentence), is_decision(sentence, Speaker::User));
        }
    }

    #[test]
    fn a_literal_in_prose_is_found_wherever_it_stands(
        before in "[a-z ]{0,20}", after in "[a-z ]{0,20}", name in "[a-z]{3,8}", line in 1_u32..999,
    ) {
        let path = format!("src/{name}/mod.rs:{line}");
        let text = format!("{before} {path} {after}");
        prop_assert!(literals(&text).contains(&(LiteralKind::Path, path.as_str())), "{text}");
    }
}
