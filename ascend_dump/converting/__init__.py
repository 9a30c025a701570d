"""Convert dumps to files that other tools read: npy, npz, bin, txt, csv, pt and safetensors. Also upload dumps."""
