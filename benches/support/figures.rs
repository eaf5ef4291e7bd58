//! Samples, medians and tables.

#![allow(dead_code, reason = "each benchmark uses its part of it")]

use std::time::Duration;

/// Times that one thing took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    pub(crate) fn push(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Milliseconds below which that share of the samples lies.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index of a short list"
    )]
    pub(crate) fn quantile_ms(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let index = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
        sorted.get(index).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    }

    /// The median in milliseconds.
    pub(crate) fn p50_ms(&self) -> f64 {
        self.quantile_ms(0.5)
    }
}

/// The median of some figures, one of each round, and the least and greatest of
/// them.
pub(crate) fn over_rounds(figures: &[f64]) -> String {
    let mut sorted = figures.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match (sorted.first(), sorted.get(sorted.len() / 2), sorted.last()) {
        (Some(least), Some(median), Some(greatest)) => format!("{median:.2} ({least:.2}–{greatest:.2})"),
        _ => "–".to_owned(),
    }
}

/// Prints rows in columns; the first row is the header.
#[expect(clippy::print_stdout, reason = "the table is what a benchmark is for")]
pub(crate) fn print_table(title: &str, rows: &[Vec<String>]) {
    println!("\n{title}");
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |i: usize| rows.iter().filter_map(|row| row.get(i)).map(|cell| cell.chars().count()).max();
    let widths: Vec<_> = (0..columns).map(|i| width(i).unwrap_or(0)).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, width))| {
            if i == 0 { format!("{cell:width$}") } else { format!("{cell:>width$}") }
        });
        println!("  {}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

/// A row of a table.
pub(crate) fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}
