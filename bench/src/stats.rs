//! Samples and how they are shown.

use std::fmt;
use std::time::Duration;

/// Durations of one thing, any order.
#[derive(Debug, Default, Clone)]
pub struct Samples(Vec<Duration>);

impl Samples {
    pub fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    /// The smallest value that at least `percent` of the samples do not exceed (nearest rank); zero if there are none.
    pub fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1) - 1;
        sorted.get(rank).copied().unwrap_or_default()
    }
}

struct Row {
    case: String,
    what: String,
    samples: Samples,
    /// Against the first row of its case.
    ratio: Option<f64>,
}

/// Rows in the order they were measured.
pub struct Report(Vec<Row>);

impl Report {
    pub fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds one case: the first entry is the product, each other one gets "product / this" as its ratio.
    pub fn case(&mut self, case: &str, rows: Vec<(&str, Samples)>) {
        let product = rows.first().map(|(_, samples)| samples.percentile(50));
        for (index, (what, samples)) in rows.into_iter().enumerate() {
            let ratio = match product {
                Some(product) if index > 0 => Some(product.as_secs_f64() / samples.percentile(50).as_secs_f64()),
                _ => None,
            };
            self.0.push(Row { case: case.to_owned(), what: what.to_owned(), samples, ratio });
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<26} {:<30} {:>5} {:>9} {:>9} {:>9}  product/this",
            "case", "what", "n", "p50 ms", "p90 ms", "p99 ms"
        )?;
        for row in &self.0 {
            let ms = |percent| row.samples.percentile(percent).as_secs_f64() * 1000.0;
            let (n, ratio) = (row.samples.0.len(), row.ratio.map_or(String::new(), |r| format!("{r:.2}")));
            writeln!(
                f,
                "{:<26} {:<30} {n:>5} {:>9.2} {:>9.2} {:>9.2}  {ratio}",
                row.case,
                row.what,
                ms(50),
                ms(90),
                ms(99)
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let mut samples = Samples::default();
        for ms in (1..=100).rev() {
            samples.push(Duration::from_millis(ms));
        }
        assert_eq!(samples.percentile(50), Duration::from_millis(50));
        assert_eq!(samples.percentile(99), Duration::from_millis(99));
        assert_eq!(Samples::default().percentile(50), Duration::ZERO);
    }
}
