"""Set before anything imports torch or triton; both read it once."""

import os
import shutil

os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# without a GPU, Triton kernels are proved in its interpreter; torch.compile on CPU works as before
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")
