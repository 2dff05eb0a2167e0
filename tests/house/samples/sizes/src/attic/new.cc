int a_folder_that_has_no_place = 1;
