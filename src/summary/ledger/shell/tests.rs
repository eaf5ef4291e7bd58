use super::*;
use FileState::{Deleted, Edited, MovedTo, Read, Written};

fn files(line: &str) -> Vec<(String, FileState)> {
    let effects = effects(line, None).into_iter();
    effects
        .filter_map(|effect| match effect {
            Effect::File { path, state, .. } => Some((path, state)),
            _ => None,
        })
        .collect()
}

fn looks(line: &str) -> bool {
    effects(line, None).iter().any(|effect| matches!(effect, Effect::Command { is_look: true, .. }))
}

#[test]
#[rustfmt::skip]
fn commands_tell_what_they_do_to_files() {
    let moved = |to: &str| MovedTo(to.to_owned());
    let cases: &[(&str, &[(&str, FileState)])] = &[
        ("cat a.rs b.rs | head -n 5", &[("a.rs", Read), ("b.rs", Read)]),
        ("head -n 20 src/x.py", &[("src/x.py", Read)]),
        ("sed -n '1,5p' a.rs", &[("a.rs", Read)]),
        ("sed -i 's/a/b/' a.rs b.rs", &[("a.rs", Edited), ("b.rs", Edited)]),
        ("sed -i '' -e 's/a/b/' a.rs", &[("a.rs", Edited)]),
        ("echo hi > out.txt && echo more >> out.txt", &[("out.txt", Written), ("out.txt", Edited)]),
        ("make 2>&1 | tee build.log", &[("build.log", Written)]),
        ("make >/dev/null 2>err.log", &[("err.log", Written)]),
        ("rm -rf target dist/", &[("target", Deleted), ("dist/", Deleted)]),
        ("mv a.rs b.rs", &[("a.rs", moved("b.rs")), ("b.rs", Written)]),
        ("mv a b src/", &[("a", moved("src/a")), ("src/a", Written), ("b", moved("src/b")), ("src/b", Written)]),
        ("cp 'a b.txt' c.txt", &[("a b.txt", Read), ("c.txt", Written)]),
        ("cd /w/x && cat ../y.rs; touch ./z", &[("/w/y.rs", Read), ("/w/x/z", Written)]),
        ("git rm old.rs && git mv a b", &[("old.rs", Deleted), ("a", moved("b")), ("b", Written)]),
        ("git checkout -- src/a.rs", &[("src/a.rs", Edited)]),
        ("git -C /r restore a.rs", &[("/r/a.rs", Edited)]),
        ("bash -lc \"cat a.rs\"", &[("a.rs", Read)]),
        ("sudo FOO=1 cat a.rs", &[("a.rs", Read)]),
        ("cat > f.py <<'EOF'\nrm x > y\nEOF\nrm z", &[("f.py", Written), ("z", Deleted)]),
        ("python3 - <<EOF\nopen('x')\nEOF", &[]),
        ("git commit -m \"$(cat <<'EOF'\nIt's > done\nEOF\n)\"", &[]),
        ("rm $f *.o `x`", &[]),
        ("cat < in.txt", &[("in.txt", Read)]),
        ("cat a | xxd -g 1", &[("a", Read)]),
        ("gofmt -w a.go", &[("a.go", Edited)]),
        ("curl -sSL -o t.tgz https://a.io/t", &[("t.tgz", Written)]),
        ("apply_patch <<'EOF'\n*** Begin Patch\n*** Delete File: d.rs\n*** End Patch\nEOF", &[("d.rs", Deleted)]),
        ("grep -rn foo src/ # rm x", &[]),
        ("echo \"a > b\" 'c > d' \\> e", &[]),
        ("", &[]),
        ("'unclosed > x", &[]),
        ("cat \"$(ls | head)\" > a", &[("a", Written)]),
    ];
    for (line, expected) in cases {
        let expected: Vec<_> = expected.iter().map(|(path, state)| ((*path).to_owned(), state.clone())).collect();
        assert_eq!(files(line), expected, "{line}");
    }
}

#[test]
fn commands_that_only_look_are_told_from_others() {
    for line in [
        "ls -la | grep x",
        "git status && git diff",
        "cd x && rg foo",
        "cat a",
        "gh pr view 3",
        "git branch -a",
    ] {
        assert!(looks(line), "{line}");
    }
    for line in
        ["cargo test", "git commit -m x", "ls && make", "sed -i s/a/b/ x", "echo x > y", "git branch new"]
    {
        assert!(!looks(line), "{line}");
    }
}

#[test]
fn branches_and_tags_are_names_that_a_command_makes() {
    let mints = |line: &str| match effects(line, None).pop() {
        Some(Effect::Command { mints, .. }) => mints,
        other => panic!("{other:?}"),
    };
    let name = |what: &str, name: &str| vec![(what.to_owned(), name.to_owned())];
    assert_eq!(mints("git checkout -b feat/x"), name("branch", "feat/x"));
    assert_eq!(mints("git switch -c feat/x main"), name("branch", "feat/x"));
    assert_eq!(mints("git tag v1.2.3"), name("tag", "v1.2.3"));
    assert_eq!(mints("git worktree add -b w ../w"), name("branch", "w"));
    assert_eq!(mints("git tag -f -m Release v1.2.3 HEAD~1"), name("tag", "v1.2.3"));
    assert_eq!(mints("git tag -as v2 --message=x"), name("tag", "v2"));
    assert_eq!(mints("git branch --track -f feat/y origin/y"), name("branch", "feat/y"));
    for line in [
        "git branch -a",
        "git branch -d x",
        "git tag -l 'v*'",
        "git checkout main",
        "git branch --list x",
        "git branch -u origin/main",
        "git branch x --delete",
        "git branch --no-merged main",
        "git branch --edit-description main",
        "git tag --points-at HEAD",
        "git tag --verify v1",
    ] {
        assert_eq!(mints(line), [], "{line}");
    }
}

#[test]
fn a_command_in_words_is_read_like_a_line() {
    let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let line = effects("rm -f a.rs", None);
    assert_eq!(effects_of_words(words(&["rm", "-f", "a.rs"]), None), line);
    assert_eq!(effects_of_words(words(&["bash", "-lc", "rm -f a.rs"]), None), line);
}
