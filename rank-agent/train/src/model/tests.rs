//! Tests of the model against a copy in f64, with one rank and data-parallel.

use std::cell::RefCell;

use kernels::{BucketPack, BucketUnpack, Cpu, Dtype};

use super::*;
use crate::buckets::BucketPlan;
use crate::op_observer::{Range, Unobserved};

fn cpu() -> Cpu {
    Cpu::new(Dtype::F32).unwrap()
}

fn model(config: &ModelConfig) -> Model<Cpu> {
    Model::new(&cpu(), config, &mut OpTable::new(Dtype::F32)).unwrap()
}

const SMALL: ModelConfig =
    ModelConfig { layers: 3, hidden: 7, batch: 5, classes: 4, seed: 11, learning_rate: 0.02, momentum: 0.9 };

/// Forward and backward of one step; returns the loss and the gradients in order of use.
fn gradients(model: &mut Model<Cpu>, rank: u64, step: u64) -> (f64, Vec<Vec<f32>>) {
    let cpu = cpu();
    let mut gradients = vec![Vec::new(); model.parameters().len()];
    model.load_batch(&cpu, &Unobserved, rank, step).unwrap();
    model.forward(&cpu, &Unobserved).unwrap();
    model
        .backward::<Error>(&cpu, &Unobserved, |ready| {
            gradients[ready.parameter] = cpu.host(ready.gradient).unwrap().to_vec();
            Ok(())
        })
        .unwrap();
    (model.loss(&cpu).unwrap(), gradients)
}

fn parameters_f64(model: &Model<Cpu>) -> Vec<Vec<f64>> {
    let values = model.layers.iter().flat_map(|layer| [&layer.weight.value, &layer.bias.value]);
    values.map(|value| cpu().host(value).unwrap().iter().map(|&x| f64::from(x)).collect()).collect()
}

/// The whole model again in f64, written from its definition.
fn loss_f64(parameters: &[Vec<f64>], inputs: &[f32], labels: &[u32], hidden: usize) -> f64 {
    let mut total = 0.0;
    for (x, &label) in inputs.chunks(hidden).zip(labels) {
        let mut x: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        for (index, layer) in parameters.chunks(2).enumerate() {
            let is_last = 2 * (index + 1) == parameters.len();
            let (weight, bias) = (&layer[0], &layer[1]);
            let rows = weight.chunks(x.len()).zip(bias);
            let sums: Vec<f64> = rows.map(|(w, b)| b + w.iter().zip(&x).map(|(w, x)| w * x).sum::<f64>()).collect();
            x = if is_last { sums } else { sums.into_iter().map(|z| z.max(0.0)).collect() };
        }
        total += x.iter().map(|z| z.exp()).sum::<f64>().ln() - x[label as usize];
    }
    total / labels.len() as f64
}

#[test]
fn gradients_are_the_slopes_of_the_loss() {
    let mut model = model(&SMALL);
    let (loss, gradients) = gradients(&mut model, 1, 2);
    let mut parameters = parameters_f64(&model);
    let (inputs, labels) = (cpu().host(&model.input).unwrap().to_vec(), model.host_labels.clone());
    let loss_at = |parameters: &[Vec<f64>]| loss_f64(parameters, &inputs, &labels, SMALL.hidden);
    assert!((loss - loss_at(&parameters)).abs() < 1e-6, "{loss}");
    // The error of a central difference in f64 is about 1e-10 here, that of f32 arithmetic about 1e-7.
    let h = 1e-5;
    let mut largest = 0.0_f64;
    for (p, gradient) in gradients.iter().enumerate() {
        for (i, &found) in gradient.iter().enumerate() {
            let value = parameters[p][i];
            parameters[p][i] = value + h;
            let above = loss_at(&parameters);
            parameters[p][i] = value - h;
            let slope = (above - loss_at(&parameters)) / (2.0 * h);
            parameters[p][i] = value;
            assert!((f64::from(found) - slope).abs() < 1e-6, "parameter {p}[{i}]: {found} for {slope}");
            largest = largest.max(slope.abs());
        }
    }
    assert!(largest > 0.01, "the slopes are not all nothing: {largest}");
}

#[test]
fn gradients_become_ready_in_reverse_order_of_use() {
    let mut model = model(&SMALL);
    let names: Vec<&str> = model.parameters.iter().map(|parameter| parameter.name.as_str()).collect();
    assert_eq!(names, ["layer0.weight", "layer0.bias", "layer1.weight", "layer1.bias", "layer2.weight", "layer2.bias"]);
    let shapes: Vec<&[usize]> = model.parameters.iter().map(|parameter| parameter.shape.as_slice()).collect();
    assert_eq!(shapes, [&[7, 7][..], &[7], &[7, 7], &[7], &[4, 7], &[4]]);
    let mut order = Vec::new();
    let backward = model.backward::<Error>(&cpu(), &Unobserved, |ready| {
        order.push(ready.parameter);
        Ok(())
    });
    assert_eq!((backward, order), (Ok(()), vec![5, 4, 3, 2, 1, 0]));
}

#[test]
fn an_error_of_the_caller_ends_the_backward_pass() {
    let mut seen = 0;
    let result = model(&SMALL).backward(&cpu(), &Unobserved, |_| {
        seen += 1;
        if seen == 3 { Err(Error::UnknownDtype { word: "stop".to_owned() }) } else { Ok(()) }
    });
    assert!(result.is_err());
    assert_eq!(seen, 3);
}

/// Losses of a single rank.
fn train(config: &ModelConfig, steps: u64) -> Vec<f64> {
    let (cpu, mut model) = (cpu(), model(config));
    (0..steps)
        .map(|step| {
            let (loss, _) = gradients(&mut model, 0, step);
            model.update(&cpu, &Unobserved).unwrap();
            loss
        })
        .collect()
}

#[test]
fn the_loss_falls_within_twenty_steps() {
    for (layers, hidden) in [(8, 256), (4, 64), (2, 128), (1, 32)] {
        let losses = train(&ModelConfig { layers, hidden, ..ModelConfig::default() }, 20);
        let (first, last) = (losses[0], losses[17..].iter().sum::<f64>() / 3.0);
        // Before any training all ten classes are about equally likely.
        assert!((first - 10.0_f64.ln()).abs() < 0.15, "{layers} × {hidden}: {losses:?}");
        assert!(last < 0.5 * first, "{layers} × {hidden}: {losses:?}");
    }
}

/// One step of several ranks, their gradients averaged through buckets, added in order of rank.
fn data_parallel_step(models: &mut [Model<Cpu>], plan: &BucketPlan, step: u64) {
    let cpu = cpu();
    let scale = 1.0 / models.len() as f32;
    let mut sums: Vec<Vec<f32>> = plan.buckets.iter().map(|bucket| vec![0.0; bucket.len]).collect();
    for (rank, model) in models.iter_mut().enumerate() {
        let (_, gradients) = gradients(model, rank as u64, step);
        for (gradient, slot) in gradients.iter().zip(&plan.slots) {
            let (mut tensor, mut bucket) =
                (cpu.alloc("tensor", slot.len).unwrap(), cpu.alloc("bucket", sums[slot.bucket].len()).unwrap());
            cpu.upload(gradient, &mut tensor).unwrap();
            let pack = BucketPack { len: slot.len, offset: slot.offset, scale };
            cpu.bucket_pack(&pack, &tensor, &mut bucket).unwrap();
            for (sum, share) in sums[slot.bucket].iter_mut().zip(cpu.host(&bucket).unwrap()) {
                *sum += share;
            }
        }
    }
    for model in models {
        for (parameter, slot) in plan.slots.iter().enumerate() {
            let mut bucket = cpu.alloc("bucket", sums[slot.bucket].len()).unwrap();
            cpu.upload(&sums[slot.bucket], &mut bucket).unwrap();
            let unpack = BucketUnpack { len: slot.len, offset: slot.offset };
            cpu.bucket_unpack(&unpack, &bucket, model.gradient_mut(parameter).unwrap()).unwrap();
        }
        model.update(&cpu, &Unobserved).unwrap();
    }
}

#[test]
fn ranks_stay_bit_identical_as_long_as_gradients_are_averaged() {
    let cpu = cpu();
    let mut models: Vec<Model<Cpu>> = (0..3).map(|_| model(&SMALL)).collect();
    let lens: Vec<usize> = models[0].parameters().iter().map(Parameter::len).collect();
    let plan = BucketPlan::new(&lens, 4, 100);
    assert!(plan.buckets.len() > 1);
    let checksums = |models: &[Model<Cpu>]| -> Vec<u64> {
        models.iter().map(|model| model.checksum(&cpu, &Unobserved).unwrap()).collect()
    };
    let mut seen = vec![checksums(&models)[0]];
    for step in 0..4 {
        data_parallel_step(&mut models, &plan, step);
        let now = checksums(&models);
        assert!(now.iter().all(|&checksum| checksum == now[0]), "step {step}: {now:x?}");
        assert!(!seen.contains(&now[0]), "the parameters move");
        seen.push(now[0]);
    }
    // Without averaging, ranks diverge at once, because they have different data.
    for (rank, model) in models.iter_mut().enumerate() {
        gradients(model, rank as u64, 9);
        model.update(&cpu, &Unobserved).unwrap();
    }
    let apart = checksums(&models);
    assert!(apart[0] != apart[1] && apart[1] != apart[2]);
}

/// Lists ranges and operations, indented by nesting.
#[derive(Default)]
struct Diary {
    depth: RefCell<usize>,
    lines: RefCell<Vec<String>>,
    ids: RefCell<Vec<usize>>,
}

impl Diary {
    fn nested<R>(&self, name: &str, body: impl FnOnce() -> R) -> R {
        self.lines.borrow_mut().push(format!("{}{name}", "  ".repeat(*self.depth.borrow())));
        *self.depth.borrow_mut() += 1;
        let result = body();
        *self.depth.borrow_mut() -= 1;
        result
    }
}

impl Observer for Diary {
    fn range<R>(&self, range: Range, body: impl FnOnce() -> R) -> R {
        self.nested(range.name(), body)
    }

    fn op<R>(&self, op: &Op, body: impl FnOnce() -> R) -> R {
        self.ids.borrow_mut().push(op.id);
        self.nested(&format!("{} {}", op.name, op.input_dims), body)
    }
}

#[test]
fn every_operation_is_observed_with_its_shapes() {
    let (cpu, diary, mut ops) = (cpu(), Diary::default(), OpTable::new(Dtype::F32));
    let mut model = Model::new(&cpu, &ModelConfig { layers: 2, ..SMALL }, &mut ops).unwrap();
    diary.range(Range::Input, || model.load_batch(&cpu, &diary, 0, 0)).unwrap();
    diary.range(Range::Forward, || model.forward(&cpu, &diary)).unwrap();
    diary.range(Range::Backward, || model.backward::<Error>(&cpu, &diary, |_| Ok(()))).unwrap();
    diary.range(Range::Optimizer, || model.update(&cpu, &diary)).unwrap();
    model.checksum(&cpu, &diary).unwrap();
    let expected = "\
input
  make_batch [[5, 7], [5]]
forward
  gemm [[5, 7], [7, 7]]
  bias_relu [[5, 7], [7]]
  gemm [[5, 7], [4, 7]]
  bias_add [[5, 4], [4]]
  softmax_cross_entropy [[5, 4], [5]]
backward
  bias_grad [[5, 4]]
  gemm [[5, 4], [5, 7]]
  gemm [[5, 4], [4, 7]]
  bias_relu_backward [[5, 7], [5, 7]]
  gemm [[5, 7], [5, 7]]
optimizer
  sgd_momentum [[49], [49], [49]]
  sgd_momentum [[7], [7], [7]]
  sgd_momentum [[28], [28], [28]]
  sgd_momentum [[4], [4], [4]]
checksum ";
    assert_eq!(diary.lines.into_inner().join("\n"), expected);
    let mut ids = diary.ids.into_inner();
    ids.sort_unstable();
    assert_eq!(ids, (0..ops.ops().len()).collect::<Vec<_>>(), "every declared operation once");
}

#[test]
fn the_cost_of_a_step_is_the_documented_one() {
    let mut ops = OpTable::new(Dtype::F32);
    let model = Model::new(&cpu(), &ModelConfig::default(), &mut ops).unwrap();
    let gemm_flops: i64 = ops.ops().iter().filter(|op| op.name == "gemm").map(|op| op.cost.flops).sum();
    // Seven layers of 1024 × 1024, the first without a gradient of its input, and one of 10 × 1024.
    assert_eq!(gemm_flops, 2 * 64 * (20 * 1024 * 1024 + 3 * 10 * 1024));
    assert_eq!(model.parameters().iter().map(Parameter::len).sum::<usize>(), 7_357_450);
}

#[test]
fn allocations_name_all_memory() {
    let model = model(&SMALL);
    let bytes = |suffix: &str| -> usize {
        model.allocations().iter().filter(|a| a.name.ends_with(suffix)).map(|a| a.bytes).sum()
    };
    let parameters = 4 * model.parameters().iter().map(Parameter::len).sum::<usize>();
    assert_eq!(bytes("weight") + bytes("bias"), parameters);
    assert_eq!((bytes(".gradient"), bytes(".velocity")), (parameters, parameters));
    assert_eq!((bytes("input"), bytes("labels"), bytes("loss")), (4 * 5 * 7, 4 * 5, 4));
    assert_eq!(bytes(".output"), 4 * 5 * (7 + 7 + 4));
    let mut names: Vec<&str> = model.allocations().iter().map(|a| a.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), model.allocations().len());
}

#[test]
fn invalid_sizes_are_errors() {
    let make = |config: &ModelConfig| Model::new(&cpu(), config, &mut OpTable::new(Dtype::F32)).err().unwrap();
    assert_eq!(
        make(&ModelConfig { batch: 0, ..SMALL }).to_string(),
        "model: shapes (layers 3, hidden 7, batch 0, classes 4) must all be at least 1"
    );
    let huge = make(&ModelConfig { hidden: usize::MAX / 4, ..SMALL });
    assert_eq!(huge.to_string(), format!("cannot allocate {} bytes for `input`", usize::MAX));
}
