use super::*;

#[test]
fn an_entry_tells_who_speaks_and_shows_calls_and_results_in_fences() {
    let mut transcript = Transcript::new(WireFormat::AnthropicMessages);
    let call = r#"{"role":"assistant","content":[{"type":"thinking","thinking":"first\n\nthen","signature":"s"},
        {"type":"text","text":"I look."},
        {"type":"tool_use","id":"c1","name":"shell","input":{"cmd":"cat `a`"}},
        {"type":"tool_use","id":"c2","name":"ls","input":{}}]}"#;
    let expected = "## 3 · model\n\n> *Thinking:*\n>\n> first\n>\n> then\n\nI look.\n\n\
        **Call** `shell` `c1`\n\n```\n{\"cmd\":\"cat `a`\"}\n```\n\n**Call** `ls` `c2`\n\n```\n{}\n```\n";
    assert_eq!(transcript.entry(3, call.as_bytes()), expected);
    let result = r#"{"role":"user","content":[
        {"type":"tool_result","tool_use_id":"c1","content":"a\n```rust\n````\nb\n"},
        {"type":"tool_result","tool_use_id":"c2","content":[{"type":"text","text":"x"},
        {"type":"image","source":{"type":"url","url":"u"}},{"type":"text","text":"y"}]}]}"#;
    let expected = "## 4 · results\n\n**Result** `shell` `c1`\n\n`````\na\n```rust\n````\nb\n`````\n\n\
        **Result** `ls` `c2`\n\n```\nx\n```\n\n*[picture]*\n\n```\ny\n```\n";
    assert_eq!(transcript.entry(4, result.as_bytes()), expected);
    let strange = Transcript::new(WireFormat::Opaque).entry(5, br#"{"a":[1]}"#);
    assert_eq!(strange, "## 5 · entry\n\n{\"a\":[1]}\n");
}

#[test]
fn a_text_does_not_break_out_of_its_section() {
    assert_eq!(embedded("# a\n####### b\n#c\n###### d", 2), "### a\n####### b\n#c\n###### d");
    // What could reach beyond its section stands in a code block.
    for text in [
        "```sh\n# not a heading\n``` x",
        "1. do\n\n   ```sh\n   rm x",
        "- a\n\n  ```\n  code\nplain\n\n# Heading after",
        "one\n<!-- two",
        "<pre>",
        "Title\n=====",
        "Title\n---",
        "   # x",
        "#",
        "``` a`b\n# c",
    ] {
        assert_eq!(embedded(text, 2), fenced(text));
    }
    assert_eq!(embedded("a rule\n\n---\n\nand a < b", 2), "a rule\n\n---\n\nand a < b");
    assert_eq!(embedded("~~~\n```\n~~~~\n# a", 1), "~~~\n```\n~~~~\n## a");
    assert_eq!(fenced(""), "```\n```");
    assert_eq!(code("a`b"), "``a`b``");
    assert_eq!(code("`"), "`` ` ``");
}

#[test]
fn a_memory_has_a_section_for_each_thing_that_there_is() {
    let empty = Memory { session: "sessions/s".into(), ..Memory::default() };
    assert_eq!(empty.render(), "# Memory of sessions/s\n");
    let episode = Episode {
        number: "7".into(),
        entries: (1, 9),
        time: "1970-01-01T00:00:00Z".into(),
        model: String::new(),
        text: "## Goal\ncount".into(),
    };
    let full = Memory {
        goal: "count\n".into(),
        pins: vec![("rule".into(), "never\nforget".into()), ("b".into(), "c".into())],
        notes: vec![("port".into(), "# 5433".into())],
        ledger: "Made:\n- x".into(),
        episodes: vec![episode],
        ..empty
    };
    assert_eq!(
        full.render(),
        "# Memory of sessions/s\n\n## First request\n\ncount\n\n## Pins\n\n- **rule**: never\n  forget\n\
         - **b**: c\n\n## Notes\n\n### port\n\n#### 5433\n\n## Done so far\n\nMade:\n- x\n\n## Episodes\n\n\
         ### Episode 7 · entries 1 to 9 · 1970-01-01T00:00:00Z · extracted\n\n##### Goal\ncount\n"
    );
}

#[test]
fn a_name_is_shown_as_it_is() {
    let memory = Memory {
        session: "sessions/s".into(),
        pins: vec![("a** <!-- `x".into(), "c".into())],
        notes: vec![("[x](y) #\\".into(), "z".into())],
        ..Memory::default()
    };
    let expected = "# Memory of sessions/s\n\n## Pins\n\n- **a\\*\\* \\<!-- \\`x**: c\n\n## Notes\n\n\
        ### \\[x\\](y) \\#\\\\\n\nz\n";
    assert_eq!(memory.render(), expected);
}
