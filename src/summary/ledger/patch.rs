//! Patches in the form of Codex's `apply_patch`.

use super::FileState;

/// What a patch does to which files; nothing if the text holds none.
pub(super) fn files(text: &str) -> Vec<(String, FileState)> {
    let mut found: Vec<(String, FileState)> = Vec::new();
    let mut is_open = false;
    for line in text.lines().map(str::trim_end) {
        let Some(head) = line.strip_prefix("*** ") else { continue };
        match head {
            "Begin Patch" => is_open = true,
            "End Patch" => is_open = false,
            _ if !is_open => {}
            _ => {
                if let Some(path) = head.strip_prefix("Add File: ") {
                    found.push((path.to_owned(), FileState::Written));
                } else if let Some(path) = head.strip_prefix("Update File: ") {
                    found.push((path.to_owned(), FileState::Edited));
                } else if let Some(path) = head.strip_prefix("Delete File: ") {
                    found.push((path.to_owned(), FileState::Deleted));
                } else if let Some(to) = head.strip_prefix("Move to: ")
                    && let Some((_, state)) = found.last_mut()
                {
                    *state = FileState::MovedTo(to.to_owned());
                    found.push((to.to_owned(), FileState::Written));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_head_of_a_patch_says_what_becomes_of_a_file() {
        let patch = "*** Add File: no\n*** Begin Patch\n*** Add File: a b.rs\n+*** Delete File: x\n*** Update File: c\n\
            *** Move to: d\n@@\n-x\n*** Delete File: e\n*** End Patch\n*** Add File: no";
        let state = |path: &str, state| (path.to_owned(), state);
        assert_eq!(
            files(patch),
            [
                state("a b.rs", FileState::Written),
                state("c", FileState::MovedTo("d".to_owned())),
                state("d", FileState::Written),
                state("e", FileState::Deleted),
            ]
        );
    }
}
