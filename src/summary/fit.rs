//! Sections of lines, made to fit a number of tokens.

use super::Measure;

/// Lines under a title, the most important first.
pub(super) struct Section {
    /// What stands above them.
    pub(super) title: &'static str,
    /// Share of the room that it may take before the others have had theirs, in
    /// percent.
    pub(super) share: u64,
    /// Its lines.
    pub(super) lines: Vec<String>,
    /// How many more there were that are not among the lines.
    pub(super) omitted: u64,
}

/// The sections as text of at most `budget` tokens, those without lines left
/// out. Each gets its share first, in order; what is left over goes to those that
/// have more. What is left out is counted. Empty if not even one line fits.
pub(super) fn fit(sections: &[Section], budget: u64, measure: Measure<'_>) -> String {
    let sections: Vec<_> = sections.iter().filter(|section| !section.lines.is_empty()).collect();
    let costs: Vec<Vec<u64>> =
        sections.iter().map(|section| section.lines.iter().map(|line| measure(line) + 1).collect()).collect();
    // With the largest number, so that it is never longer.
    let frame: Vec<u64> =
        sections.iter().map(|section| measure(section.title) + measure(&more(u64::MAX)) + 2).collect();
    let mut shown = vec![0_usize; sections.len()];
    let mut used = 0_u64;
    for is_first in [true, false] {
        for (index, section) in sections.iter().enumerate() {
            let (Some(shown), Some(costs), Some(frame)) =
                (shown.get_mut(index), costs.get(index), frame.get(index))
            else {
                continue;
            };
            let share = if is_first { budget.saturating_mul(section.share) / 100 } else { budget };
            let limit = if is_first { used.saturating_add(share).min(budget) } else { budget };
            for cost in costs.iter().skip(*shown) {
                let cost = if *shown == 0 { cost + frame } else { *cost };
                if used.saturating_add(cost) > limit {
                    break;
                }
                used += cost;
                *shown += 1;
            }
        }
    }
    // Tokens of a whole can be more than those of its lines.
    loop {
        let text = render(&sections, &shown);
        if measure(&text) <= budget {
            return text;
        }
        let Some(last) = shown.iter_mut().rev().find(|shown| **shown > 0) else { return String::new() };
        *last -= 1;
    }
}

fn more(count: u64) -> String {
    format!("(and {count} more)")
}

fn render(sections: &[&Section], shown: &[usize]) -> String {
    let mut text = String::new();
    for (section, &shown) in sections.iter().zip(shown).filter(|(_, shown)| **shown > 0) {
        text.push_str(section.title);
        text.push('\n');
        for line in section.lines.iter().take(shown) {
            text.push_str(line);
            text.push('\n');
        }
        let left =
            section.omitted.saturating_add((section.lines.len() - shown.min(section.lines.len())) as u64);
        if left > 0 {
            text.push_str(&more(left));
            text.push('\n');
        }
    }
    text
}

/// The beginning of `text` in at most `bytes` bytes, on one line: white space
/// becomes one space, and what is cut off, words as a whole, is marked.
pub(super) fn one_line(text: &str, bytes: usize) -> String {
    let mut line = String::with_capacity(bytes.min(text.len()) + 4);
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        let space = usize::from(!line.is_empty());
        if line.len() + space + word.len() > bytes {
            // A piece of a word would be another word.
            if space == 1 {
                line.push(' ');
            } else {
                line.push_str(word.get(..word.floor_char_boundary(bytes)).unwrap_or_default());
            }
            line.push('…');
            return line;
        }
        if space == 1 {
            line.push(' ');
        }
        line.push_str(word);
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> u64 {
        text.split_whitespace().count() as u64
    }

    fn section(title: &'static str, share: u64, lines: &[&str]) -> Section {
        Section { title, share, lines: lines.iter().map(|&line| line.to_owned()).collect(), omitted: 0 }
    }

    #[test]
    fn all_lines_stand_where_there_is_room() {
        let sections = [section("A:", 50, &["1", "2"]), section("none:", 10, &[]), section("B:", 50, &["3"])];
        assert_eq!(fit(&sections, 1_000, &words), "A:\n1\n2\nB:\n3\n");
    }

    #[test]
    fn each_section_has_its_share_and_what_is_left_out_is_counted() {
        let many: Vec<_> = (0..100).map(|_| "x y").collect();
        let sections = [section("A:", 40, &many), section("B:", 40, &many)];
        let text = fit(&sections, 60, &words);
        assert!(words(&text) <= 60, "{text}");
        let [a, b] = text.split("B:\n").collect::<Vec<_>>().try_into().unwrap();
        for part in [a, b] {
            assert!(part.contains("x y") && part.ends_with("more)\n"), "{text}");
        }
    }

    #[test]
    fn nothing_stands_where_nothing_fits() {
        assert_eq!(fit(&[section("A:", 50, &["1"])], 2, &words), "");
        assert_eq!(fit(&[], 2, &words), "");
    }

    #[test]
    fn a_line_is_cut_between_characters() {
        assert_eq!(one_line("a\n b\u{0}\tc", 10), "a b c");
        assert_eq!(one_line("äöü äöü", 9), "äöü …");
        assert_eq!(one_line("äöü", 3), "ä…");
        assert_eq!(one_line("", 3), "");
    }
}
