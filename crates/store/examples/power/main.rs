//! For a power-cut test around a machine: `power write DIR [--no-sync]` writes until it is killed and prints what was
//! acknowledged; `power check DIR ACKLOG` tells whether the data in DIR keeps all that, and fails if not.
//!
//! The log may be longer than one run: a writer goes on where the data says it stopped.

mod work;

use std::io::BufRead;
use work::{Acknowledged, Failure, check, write};

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", directory] => write(directory.as_ref(), true, std::io::stdout()).await,
        ["write", directory, "--no-sync"] => write(directory.as_ref(), false, std::io::stdout()).await,
        ["check", directory, log] => {
            let mut acknowledged = Acknowledged::default();
            let mut log = std::io::BufReader::new(std::fs::File::open(log)?);
            let mut line = Vec::new();
            while log.read_until(b'\n', &mut line)? > 0 {
                acknowledged.note(&String::from_utf8_lossy(&line));
                line.clear();
            }
            println!("{} acknowledgements; {}", acknowledged.count, check(directory.as_ref(), &acknowledged).await?);
            Ok(())
        }
        _ => Err("usage: power write DIR [--no-sync] | power check DIR ACKLOG".into()),
    }
}
