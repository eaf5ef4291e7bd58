//! `turnkeep models`.

use super::output::{print, print_json, table};
use crate::model::{Price, Tokenizer};
use crate::tokens::catalogue::{self, ModelFacts};
use clap::Args;

/// List the models that the service knows: what a session's model profile takes
/// from the catalogue when it does not say it itself. Prices are in US dollars
/// per million tokens.
#[derive(Debug, Args)]
pub(super) struct Models {
    /// The model that a profile of this name gets, or all whose ids contain it
    name: Option<String>,
    /// Print JSON, one model a line
    #[arg(long)]
    json: bool,
}

impl Models {
    pub(super) fn run(self) -> anyhow::Result<()> {
        let found: Vec<_> = match &self.name {
            None => catalogue::models().collect(),
            Some(name) => match catalogue::find(name) {
                Some(facts) => vec![facts],
                None => catalogue::models().filter(|facts| facts.id.contains(name.as_str())).collect(),
            },
        };
        let source = catalogue::source();
        let (package, version) = (&source.package, &source.version);
        if let Some(name) = self.name.filter(|_| found.is_empty()) {
            anyhow::bail!("{name} is not in the catalogue, which is that of {package} {version}");
        }
        if self.json {
            return found.into_iter().try_for_each(print_json);
        }
        let head = [
            "MODEL",
            "PROVIDER",
            "WINDOW",
            "OUTPUT",
            "TOKENIZER",
            "IMAGES",
            "DOCUMENTS",
            "IN",
            "OUT",
            "READ",
            "WRITE",
            "RETIRES",
        ];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        rows.extend(found.into_iter().map(row));
        print(&table(&rows))
    }
}

fn row(facts: &ModelFacts) -> Vec<String> {
    let price = |price: Option<Price>| price.map_or_else(String::new, |price| f64::from(price).to_string());
    let taken = |is_taken: Option<bool>| {
        is_taken.map_or("", |is_taken| if is_taken { "yes" } else { "no" }).to_owned()
    };
    let prices = facts.prices;
    let tokenizer = match facts.tokenizer {
        Tokenizer::O200k => "o200k",
        Tokenizer::Cl100k => "cl100k",
        Tokenizer::Estimate => "estimate",
    };
    vec![
        facts.id.clone(),
        facts.provider.clone(),
        facts.window.to_string(),
        facts.output.map_or_else(String::new, |output| output.to_string()),
        tokenizer.to_owned(),
        taken(facts.images),
        taken(facts.documents),
        price(prices.map(|prices| prices.input)),
        price(prices.map(|prices| prices.output)),
        price(prices.and_then(|prices| prices.cache_read)),
        price(prices.and_then(|prices| prices.cache_write)),
        facts.retires.clone().unwrap_or_default(),
    ]
}
