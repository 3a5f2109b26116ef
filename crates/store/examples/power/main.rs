//! For a power-cut test around a machine: `power write DIR [--port N] [--no-sync]` writes until it is killed and prints what
//! was acknowledged, or sends it to an I/O port; `power check DIR ACKLOG` tells whether the data in DIR keeps all that, and
//! fails if not. `power replay LOG DISK SEED` makes of a disk and a log of writes what a power cut leaves; ends with 3 if the log
//! cannot be judged.
//!
//! The log may be longer than one run: a writer goes on where the data says it stopped.

mod replay;
mod work;

use std::fs::File;
use std::io::{BufRead, Write};
use std::os::unix::fs::FileExt;
use std::process::ExitCode;
use work::{Acknowledged, Failure, check, write};

/// An I/O port of a virtual machine. A byte has left the machine when the write returns: no buffer keeps an acknowledgement
/// that then dies with the machine.
struct Port {
    ports: File,
    number: u64,
}

impl Write for Port {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        for byte in bytes {
            self.ports.write_all_at(&[*byte], self.number)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode, Failure> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut sync = true;
    arguments.retain(|argument| {
        sync &= argument != "--no-sync";
        argument != "--no-sync"
    });
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["write", directory] => write(directory.as_ref(), sync, std::io::stdout()).await?,
        ["write", directory, "--port", number] => {
            let ports = File::options().write(true).open("/dev/port")?;
            write(directory.as_ref(), sync, Port { ports, number: number.parse()? }).await?;
        }
        ["check", directory, log] => {
            let mut acknowledged = Acknowledged::default();
            let mut log = std::io::BufReader::new(File::open(log)?);
            let mut line = Vec::new();
            // A log on a raw disk ends where the zeros begin.
            while log.read_until(b'\n', &mut line)? > 0 && line[0] != 0 {
                acknowledged.note(&String::from_utf8_lossy(&line));
                line.clear();
            }
            println!("{} acknowledgements; {}", acknowledged.count, check(directory.as_ref(), &acknowledged).await?);
        }
        ["replay", log, disk, seed] => match replay::replay(log.as_ref(), disk.as_ref(), seed.parse()?)? {
            Some(done) => println!("{done}"),
            None => return Ok(ExitCode::from(3)),
        },
        _ => {
            let usage = "power write DIR [--port N] [--no-sync] | power check DIR ACKLOG | power replay LOG DISK SEED";
            return Err(format!("usage: {usage}").into());
        }
    }
    Ok(ExitCode::SUCCESS)
}
