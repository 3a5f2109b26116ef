//! `kubectl create --edit`: edits each object of the files before it is created. Objects that are saved unchanged are not
//! created.

use super::super::edit::editor::{Form, Session};
use super::super::edit::named;
use super::super::recreate;
use super::{Arguments, annotate};
use crate::error::{Error, Result};
use crate::flags::DryRunStrategy;
use crate::kube::Kube;
use crate::printer::Printer;
use crate::resource::file::Document;
use crate::resource::{Info, from_files, locate};
use client::FieldValidation;

pub async fn run(a: &Arguments, k: &mut Kube) -> Result {
    let form = Form::parse(&a.write.print.output)?;
    let mut printer = Printer::new(&a.write.print, a.write.dry.strategy()?)?;
    let mut errors = Vec::new();
    for i in from_files(k, &a.files).await? {
        let made = match i {
            Ok(i) => edit_object(a, k, &i, form, &mut printer).await,
            Err(e) => Err(e),
        };
        errors.extend(made.err());
    }
    Error::collect(errors)
}

async fn edit_object(a: &Arguments, k: &mut Kube, i: &Info, form: Form, printer: &mut Printer) -> Result {
    let v = i.object.clone().unwrap_or_default().into_value();
    let mut session = Session::new(form, &v, named(i));
    session.windows_line_endings = a.windows_line_endings;
    session.validates = a.write.options()?.field_validation != FieldValidation::Ignore;
    let Some((draft, read)) = session.edit(k).await? else { return Ok(()) };
    for d in read {
        match create(a, k, d, printer).await {
            Ok(()) => {}
            Err(e) => return draft.keep(k, e),
        }
    }
    Ok(())
}

async fn create(a: &Arguments, k: &mut Kube, d: Document, printer: &mut Printer) -> Result {
    let i = locate(k, &d.source, d.object).await?;
    let mut o = i.object.clone().unwrap_or_default();
    if a.write.save_config {
        annotate(&mut o);
    }
    k.record(&mut o);
    if a.write.dry.strategy()? != DryRunStrategy::Client {
        o = recreate::create(&k.api(&i.resource, &i.namespace).await?, &a.write.options()?, &o).await?;
    }
    printer.print(k, &o, "created")
}
